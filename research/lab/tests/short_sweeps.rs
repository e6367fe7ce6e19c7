//! The short sweep of the rotations against the sizes that it leaves out.
//!
//! ```text
//! wicki-fig-09 at 1, 4 and 8 MiB ──► each line: how far 1 MiB is from the others, %
//! ```
//!
//! The error bars judge rotations at 1 MiB, which is a quarter of the work, because the longer ones are as fast. Ignored unless asked
//! for, since it takes a minute: `./x test --full lab`.

use memferry_lab::claims::Claims;
use memferry_lab::experiments;

const FIGURE: &str = "wicki-fig-09";
/// How far a line may be from itself: rotations by 90 degrees without bursts are 1.013 % apart.
const APART: f64 = 0.011;

#[test]
#[ignore = "takes a minute: ./x test --full lab"]
fn rotations_of_a_mib_are_as_fast_as_longer_ones() {
    let claims = Claims::built_in().expect("checked");
    let mut papers = experiments::prepare(&claims, &[FIGURE.to_owned()]).expect("listed");
    papers.retain(|paper| !paper.plans.is_empty());
    let [paper] = &mut papers[..] else { panic!("one paper has the figure") };
    let plan = &mut paper.plans[0];
    let short = plan.reduced().points();
    assert_eq!(short, [f64::from(1 << 20)]);
    let sizes = [1 << 20, 4 << 20, 8 << 20].map(f64::from);
    assert!(sizes.iter().all(|size| plan.points().contains(size)), "sizes of the whole figure");
    plan.x.points = Some(sizes.to_vec());
    let outcome = paper.run(&claims).expect("runs");
    let tables: Vec<_> = outcome.tables.iter().collect();
    assert_eq!(tables[0].series.len(), plan_lines(&tables[0].plan));
    for line in &tables[0].series {
        let rates = sizes.map(|size| line.at(size).expect("computed"));
        for (rate, size) in rates.into_iter().zip(sizes) {
            let apart = (rates[0] / rate - 1.0).abs();
            println!("{}: {:.2} % at {size} bytes", line.label, apart * 100.0);
            assert!(apart < APART, "{}: {rates:?}", line.label);
        }
    }
}

fn plan_lines(plan: &memferry_lab::plan::Plan) -> usize {
    plan.series.iter().map(|series| series.labels().count()).sum()
}
