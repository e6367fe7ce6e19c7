//! The project's file server on this machine: its processor time for a GiB when it copies and when it serves from the pool, as
//! measured by `./x bench fileserver`.

use std::collections::BTreeMap;

use crate::claims::Place;
use crate::judging::Finding;
use crate::live::{LiveError, Rows, ordered};
use crate::paper::{Case, Judge, RunError};
use crate::verdict::Verdict;

pub(super) const JUDGES: [Judge; 1] = [Judge { claim: "nava-live", place: Place::Live, judge: compared }];

const SCENES: [&str; 3] = ["local", "1 remote", "2 remote"];
/// Name of the ratio of both ways, after its scene.
const RATIO: &str = "pool over copying";

fn measured() -> Result<Vec<(String, f64)>, LiveError> {
    let rows = Rows::measured("fileserver", Some("cold"))?;
    let mut figures = Vec::new();
    for scene in SCENES {
        // The ratio first: its row has the reason if the scene is unavailable.
        for way in [RATIO, "copying", "pool"] {
            let value = rows.value(&format!("cold, {scene}, copying receiver: {way}"))?;
            figures.push((format!("{scene}, {way}"), value));
        }
    }
    Ok(figures)
}

fn compared(case: &Case<'_>) -> Result<Verdict, RunError> {
    ordered(case, "s/GiB", measured(), expectation)
}

/// Whether the claim holds on this machine: the pool spends less in every scene.
fn expectation(finding: &mut Finding<'_>, figures: &BTreeMap<String, f64>) {
    let ratios: Vec<f64> =
        figures.iter().filter(|(name, _)| name.ends_with(RATIO)).map(|(_, ratio)| *ratio).collect();
    let less = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let words = format!(
        "the pool spent less in {less} of {} scenes; processor time of the server's threads for a GiB of an uncached file, medians of \
         the rounds; the machine also runs other programs; remote clients are in network namespaces of this machine",
        ratios.len()
    );
    finding.check(!ratios.is_empty() && less == ratios.len(), words);
    finding.because(
        "a copy out of the page cache takes less of today's processors than a command to the device with its completion, and data that \
         arrived by DMA is in no cache when it goes to the socket: a server whose files are read again, or whose processor is the \
         bottleneck, should not use the pool (docs/fileserver.md)",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;
    use crate::verdict::{Basis, Status};

    #[test]
    fn the_pool_must_win_in_every_scene() {
        let claims = Claims::built_in().expect("checked");
        let of = |ratios: &[f64]| {
            let mut figures = BTreeMap::from([("a, pool".to_owned(), 0.5)]);
            let scenes = ratios.iter().enumerate();
            figures.extend(scenes.map(|(scene, ratio)| (format!("{scene}, {RATIO}"), *ratio)));
            let mut finding = Finding::of(claims.find("nava-live").expect("listed"));
            expectation(&mut finding, &figures);
            finding.verdict(Place::Live, Basis::Measured).status
        };
        assert_eq!(of(&[0.9, 0.8]), Status::Pass);
        assert_eq!(of(&[0.9, 1.0]), Status::Fail);
        assert_eq!(of(&[]), Status::Fail);
    }
}
