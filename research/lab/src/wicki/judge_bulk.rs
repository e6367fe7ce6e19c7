//! Judges of the claims on bulk transfers and on coherence (sections 4.3 and 5.1).
//!
//! ```text
//! figures 17, 19 and the crossings ──► crossover      17, 18 ──► alternating
//! exploration of the caches, the crossings with maintenance and without caching ──► incoherence
//! ```
//!
//! The criteria are in `claims.toml`. The exploration runs here, since it has no figure.

use crate::claims::Place;
use crate::judging::Finding;
use crate::machine::coherence::{Arrangement, Findings, Surroundings, explore};
use crate::paper::{Case, Judge, RunError};
use crate::table::{Series, TableError};
use crate::verdict::{Basis, Verdict};

pub(super) const JUDGES: [Judge; 4] = [
    Judge { claim: "wicki-bulk-crossover", place: Place::Simulated, judge: crossover },
    Judge { claim: "wicki-bulk-alternating", place: Place::Simulated, judge: alternating },
    Judge { claim: "wicki-mapped-alternating", place: Place::Simulated, judge: mapped_alternating },
    Judge { claim: "wicki-incoherence", place: Place::Simulated, judge: incoherence },
];

const SAME: &str = "wicki-fig-17";
const ALTERNATED: &str = "wicki-fig-18";
const CROSSINGS: &str = "wicki-crossing";
const KIB: f64 = 1024.0;
/// Fraction of the pre-mapped throughput that counts as near.
const NEAR: f64 = 0.9;
/// Sizes at which the thesis sees the effect of the cache.
const CACHED_BYTES: std::ops::RangeInclusive<f64> = 4096.0..=32768.0;

/// Points of both lines: size and both values.
pub(super) fn both<'a>(one: &'a Series, other: &'a Series) -> impl Iterator<Item = (f64, f64, f64)> + 'a {
    one.points.iter().zip(&other.points).map(|((size, one), (_, other))| (*size, *one, *other))
}

/// The sizes at which a condition fails, in words; `None` if it always holds.
pub(super) fn exceptions(
    of: impl Iterator<Item = (f64, f64, f64)>,
    holds: impl Fn(f64, f64) -> bool,
) -> Option<String> {
    let broken: Vec<String> = of
        .filter(|(_, one, other)| !holds(*one, *other))
        .map(|(size, ..)| format!("{}", size / KIB))
        .collect();
    (!broken.is_empty()).then(|| format!("but not at {} KiB", broken.join(", ")))
}

fn crossover(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label| case.tables.line(SAME, label);
    let mapped = line("mapped")?;
    let premapped = line("pre-mapped")?;
    let offloaded = line("offloaded")?;
    let l2 = case.parameters.get("l2-size")?;
    let crossing = |label: &str, l2: f64| case.tables.line(CROSSINGS, label).map(|line| line.at(l2));
    let mut finding = Finding::of(case.claim);
    let found = crossing("as measured", l2)?;
    finding.number_if_any(
        found.map(|kib| kib * KIB),
        "the offload overtakes the pre-mapped copy at no length of a frame",
    );
    finding.check(true, without_level_2(case, l2)?);
    let first = both(premapped, offloaded).find(|(_, copied, moved)| moved > copied).map(|(size, ..)| size);
    let first = first.unwrap_or(0.0) / KIB;
    finding.figure("first power of two at which the offload is faster, KiB", first);
    let clear = both(premapped, offloaded).filter(|(size, ..)| CACHED_BYTES.contains(size));
    let least = clear.map(|(_, copied, moved)| copied / moved).fold(f64::INFINITY, f64::min);
    finding.check(least > 2.0, format!("from 4 to 32 KiB pre-mapped is at least {least:.1} times as fast"));
    let slower = exceptions(both(mapped, premapped), |mapped, premapped| mapped < premapped);
    finding
        .check(slower.is_none(), format!("mapped is slower than pre-mapped {}", slower.unwrap_or_default()));
    let worst = exceptions(both(mapped, offloaded), |mapped, offloaded| mapped < offloaded);
    finding.check(worst.is_none(), format!("mapped is slower than offloaded {}", worst.unwrap_or_default()));
    let near = both(mapped, premapped).find(|(_, mapped, premapped)| *mapped >= NEAR * premapped);
    let near = near.map_or(f64::INFINITY, |(size, ..)| size / KIB);
    let words = format!("mapped comes within 10 % of pre-mapped from {near} KiB on");
    finding.check(near > first && near.is_finite(), words);
    moves(&mut finding, l2, &crossing)?;
    let (mapping, calling) = fixed_costs(mapped, premapped, offloaded);
    finding.figure("mapping both frames, us", mapping).figure("the shortest call of the driver, us", calling);
    finding.because(format!(
                "mapping and unmapping both frames takes {mapping:.0} us, by the steps of Barrelfish's own code, and a call of \
                 the driver {calling:.0} us, mostly switches of the address space: mapping would have to take as long to be \
                 the slowest for short requests"
    ));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Microseconds that mapping adds to the shortest request, and microseconds of its offload.
fn fixed_costs(mapped: &Series, premapped: &Series, offloaded: &Series) -> (f64, f64) {
    let shortest_time = |line: &Series| {
        let shortest = line.points.first().copied();
        shortest.map_or(0.0, |(bytes, rate)| bytes / (rate * KIB * KIB) * 1e6)
    };
    (shortest_time(mapped) - shortest_time(premapped), shortest_time(offloaded))
}

/// Checks that the crossing moves as predicted by arithmetic, within 5 %.
fn moves(
    finding: &mut Finding<'_>,
    l2: f64,
    crossing: &impl Fn(&str, f64) -> Result<Option<f64>, TableError>,
) -> Result<(), RunError> {
    let found = crossing("as measured", l2)?;
    let computed = crossing("by arithmetic", l2)?;
    let cases = [
        ("half the L2", crossing("as measured", l2 / 2.0)?, crossing("by arithmetic", l2 / 2.0)?),
        (
            "twice the overhead",
            crossing("overhead doubled", l2)?,
            crossing("by arithmetic, overhead doubled", l2)?,
        ),
        ("no L2 at all", crossing("no level 2 cache", l2)?, crossing("by arithmetic, no level 2 cache", l2)?),
    ];
    for (what, moved, expected) in cases {
        let (Some((moved, expected)), Some((found, computed))) = (moved.zip(expected), found.zip(computed))
        else {
            finding.check(false, format!("the figure has no crossing with {what}"));
            continue;
        };
        finding.figure(format!("with {what}, KiB"), moved);
        let ratio = moved / found;
        let arithmetic = expected / computed;
        let words = format!(
            "with {what} the crossing moves from {found} to {moved} KiB, a factor of {ratio:.2}; by arithmetic from {computed} to \
                         {expected}, a factor of {arithmetic:.2}"
        );
        finding.check((ratio / arithmetic - 1.0).abs() < 0.05, words);
    }
    Ok(())
}

/// Whether the crossing is in the claim's range without the level 2 cache too, which the system may not have turned on.
fn without_level_2(case: &Case<'_>, l2: f64) -> Result<String, RunError> {
    let Some(crossing) = case.tables.line(CROSSINGS, "no level 2 cache")?.at(l2) else {
        return Ok("without a level 2 cache there is no crossing within a frame".to_owned());
    };
    let within = case.claim.range.is_some_and(|[low, high]| (low..=high).contains(&(crossing * KIB)));
    Ok(format!(
        "this is with a level 2 cache of {} KiB; the thesis does not say that it was on, and Barrelfish's own code does not turn it on; \
         without one it is {crossing} KiB, {} the range",
        l2 / KIB,
        if within { "inside" } else { "outside" }
    ))
}

fn alternating(case: &Case<'_>) -> Result<Verdict, RunError> {
    let same = case.tables.line(SAME, "pre-mapped")?;
    let line = |label| case.tables.line(ALTERNATED, label);
    let premapped = line("pre-mapped")?;
    let one = line("offloaded")?;
    let eight = line("eight outstanding")?;
    let in_turn = line("eight outstanding, taken in turn")?;
    let mut finding = Finding::of(case.claim);
    let in_cache = |line: &Series| {
        let cached = line.points.iter().filter(|(size, _)| CACHED_BYTES.contains(size));
        cached.map(|(_, rate)| *rate).fold(0.0, f64::max)
    };
    let peak = in_cache(same);
    let without = in_cache(premapped);
    finding.figure("pre-mapped peak of one frame, MiB/s", peak);
    finding.figure("pre-mapped peak of eight frames, MiB/s", without);
    let words = format!("the peak of {peak:.0} MiB/s between 4 and 32 KiB is {without:.0} with eight frames");
    finding.check(without < 0.75 * peak, words);
    let gains: Vec<(f64, f64)> = both(eight, one).map(|(size, eight, one)| (size, eight / one)).collect();
    for (size, gain) in &gains {
        finding.figure(format!("eight outstanding against one, {} KiB", size / KIB), *gain);
    }
    let slower = exceptions(both(eight, one), |eight, one| eight > one);
    let best = gains.iter().map(|(_, gain)| *gain).fold(0.0, f64::max);
    let words = format!(
        "eight outstanding beat one, by up to {best:.2} times {}",
        slower.as_deref().unwrap_or_default()
    );
    finding.check(slower.is_none(), words.trim_end()).because(
                "where they do not, the device ends before the next call is made, and replies that interrupt calls need their own switches \
                 of the address space",
    );
    finding.figure("eight outstanding but taken in turn, against one, longest", in_turn.last() / one.last());
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// The payload from which one counts as very large here: twice the one from which the thesis offloads.
const VERY_LARGE: f64 = 1_048_576.0;

fn mapped_alternating(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label| case.tables.line(ALTERNATED, label);
    let [mapped, premapped] = [line("mapped")?, line("pre-mapped")?];
    let mut finding = Finding::of(case.claim);
    let slower = exceptions(both(mapped, premapped), |mapped, premapped| mapped < premapped);
    let words = format!("mapped is slower than pre-mapped {}", slower.as_deref().unwrap_or("throughout"));
    finding.check(slower.is_none(), words);
    for (size, mapped, premapped) in both(mapped, premapped) {
        finding.figure(format!("mapped against pre-mapped, {} KiB", size / KIB), mapped / premapped);
    }
    let near = both(mapped, premapped).find(|(_, mapped, premapped)| *mapped >= NEAR * premapped);
    let words = match near {
        Some((size, ..)) => {
            format!("of the sizes tried mapped comes within 10 % of pre-mapped from {} KiB on", size / KIB)
        }
        None => "mapped comes within 10 % of pre-mapped at no size".to_owned(),
    };
    finding.check(near.is_some_and(|(size, ..)| size >= VERY_LARGE), words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn incoherence(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let around = |reads_ahead| Surroundings { reads_ahead, neighbour: false };
    let mut states = 0;
    let mut explored = |arrangement, reads_ahead| -> Findings {
        let found = explore(arrangement, around(reads_ahead));
        states += found.states;
        found
    };
    let bare = explored(Arrangement::CachedOnly, false);
    let steps = |violation: &Option<crate::machine::coherence::Violation>| {
        violation.as_ref().map_or("not found".to_owned(), |violation| violation.steps.join(", "))
    };
    let words = format!("without maintenance a stale source is found: {}", steps(&bare.stale_source));
    finding.check(bare.stale_source.is_some(), words);
    let words = format!("and a stale destination: {}", steps(&bare.stale_destination));
    finding.check(bare.stale_destination.is_some(), words);
    for reads_ahead in [false, true] {
        let ahead = if reads_ahead { "with" } else { "without" };
        for (arrangement, name) in [
            (Arrangement::Shipped, "the driver's maintenance"),
            (Arrangement::NonCacheable, "frames not cached"),
        ] {
            let words = format!("{name}, {ahead} prefetching: nothing is stale");
            finding.check(explored(arrangement, reads_ahead).is_safe(), words);
        }
    }
    let after = explored(Arrangement::CleanThenInvalidate, false).stale_destination;
    finding.check(after.is_some(), format!("the destination must also be cleaned before: {}", steps(&after)));
    let before = explored(Arrangement::BeforeOnly, true).stale_destination;
    finding
        .check(before.is_some(), format!("and dropped after, if lines are prefetched: {}", steps(&before)));
    finding.figure("states", states as f64);
    let l2 = case.parameters.get("l2-size")?;
    for label in ["as measured", "with maintenance", "frames not cached"] {
        let found = case.tables.line(CROSSINGS, label)?.at(l2).unwrap_or(0.0);
        finding.figure(format!("crossing {label}, KiB"), found);
        finding.check(found > 0.0, format!("the crossing {label} is at {found} KiB"));
    }
    Ok(finding.verdict(Place::Simulated, Basis::Explored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_name_the_failing_sizes() {
        let points = [(1024.0, 1.0, 2.0), (2048.0, 3.0, 2.0), (4096.0, 2.0, 2.0)];
        let below = exceptions(points.into_iter(), |one, other| one < other);
        assert_eq!(below.as_deref(), Some("but not at 2, 4 KiB"));
        assert_eq!(exceptions(points.into_iter(), |one, _| one > 0.0), None);
    }
}
