//! The project's file server on this machine: its processor time for a GiB when it copies and when it serves from the pool, as
//! measured by `./x bench fileserver`.

use crate::claims::Place;
use crate::live::{LiveError, Rows, reported};
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
    reported(case, "s/GiB", measured(), |figures| {
        format!(
            "{}; processor time of the server's threads for a GiB of an uncached file, medians of the rounds; the \
                         machine also runs other programs; remote clients are in network namespaces of this machine",
            expectation(figures)
        )
    })
}

/// Whether the claim holds on this machine, in words.
fn expectation(figures: &[(String, f64)]) -> String {
    let ratios = figures.iter().filter(|(name, _)| name.ends_with(RATIO));
    let (all, less) =
        ratios.fold((0, 0), |(all, less), (_, ratio)| (all + 1, less + u32::from(*ratio < 1.0)));
    let holds = if all > 0 && less == all { "holds" } else { "does not hold" };
    format!("the pool spent less in {less} of {all} scenes: the expectation {holds} here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_must_win_in_every_scene() {
        let of = |ratios: [f64; 2]| {
            let scenes = ratios.map(|ratio| (format!("a, {RATIO}"), ratio));
            expectation(&[&[("a, pool".to_owned(), 0.5)], scenes.as_slice()].concat())
        };
        assert_eq!(of([0.9, 0.8]), "the pool spent less in 2 of 2 scenes: the expectation holds here");
        assert_eq!(
            of([0.9, 1.0]),
            "the pool spent less in 1 of 2 scenes: the expectation does not hold here"
        );
        assert!(expectation(&[]).ends_with("does not hold here"));
    }
}
