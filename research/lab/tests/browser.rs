//! Opens a page with every figure in headless Chromium: phone and desk, light and dark (tests/browser/report.py).
//!
//! ```text
//! plans, made-up lines ─► figures ─┐
//! claims, made-up verdicts ─► rows ┴─► Page ─► file ─► Chromium, driven by report.py ─► passed
//! the same page with one thing spoilt ─────────────────────────────────────────────► refused
//! ```
//!
//! Nothing is computed by a model here: the numbers only fill the page. Ignored unless asked for, since it needs Chromium and Python:
//! `./x test --full lab-page`.

use std::path::{Path, PathBuf};
use std::process::Command;

use memferry_charts::Spot;
use memferry_lab::bands::Bands;
use memferry_lab::claims::{Claims, Place};
use memferry_lab::experiments;
use memferry_lab::figures::{beside, csv};
use memferry_lab::plan::Plan;
use memferry_lab::report::{Emulated, Machine, Page, Report};
use memferry_lab::table::{Series, Table};
use memferry_lab::verdict::{Basis, Figures, Status, Verdict};

/// A figure with lines about as high as the paper's values.
fn table(plan: &Plan) -> Table {
    let known = beside::values(&plan.figure).into_iter().flat_map(|values| values.known());
    let height = known.filter_map(|known| match known.spot {
        Spot::Level(value) | Spot::Point(_, value) => Some(value),
        Spot::Mark(_) => None,
    });
    let height = height.fold(10.0, f64::max);
    let points = plan.points();
    let line = |number: usize, label: String| {
        let rising =
            |at: usize| height * (0.3 + 0.6 * at as f64 / points.len() as f64) / (1.0 + number as f64 / 9.0);
        Series { label, points: points.iter().enumerate().map(|(at, x)| (*x, rising(at))).collect() }
    };
    let apart = beside::values(&plan.figure).and_then(|values| values.apart.as_ref());
    let labels = plan.series.iter().flat_map(|series| {
        let second = apart.map(|apart| format!("{}{}", series.label, apart.lines));
        series.labels().map(str::to_owned).chain(second)
    });
    Table {
        plan: plan.clone(),
        series: labels.enumerate().map(|(number, label)| line(number, label)).collect(),
    }
}

/// A row with all that rows have.
fn verdict(id: &str, place: Place, number: usize, unit: Option<&str>) -> Verdict {
    let status = [Status::Pass, Status::Fail, Status::Undecided][number % 3];
    let name = |at: usize| format!("a figure with a long name of some words, number {at}");
    let figures = (0..number % 8).map(|at| (name(at), 1234.567)).collect();
    let why = match status {
        Status::Pass => "2 channels have 812.5 MiB/s together, one 911.25; the curve is steady",
        _ => {
            "does not hold: 171.5 ms where 176 is expected, -2.56 % off; \
             crossing-at-half-the-level-2-cache-with-the-overhead-doubled is 262144 (because (a) b); what holds: the first; the second"
        }
    };
    Verdict {
        id: id.to_owned(),
        place,
        status,
        basis: Some(if place == Place::Live { Basis::Measured } else { Basis::Predicted }),
        figures: if number.is_multiple_of(8) {
            Figures::One(Some(524_288.0))
        } else {
            Figures::Named(figures)
        },
        low: None,
        high: None,
        unit: unit.map(str::to_owned),
        why: why.to_owned(),
    }
}

fn page() -> String {
    let claims = Claims::built_in().expect("checked");
    let papers = experiments::prepare(&claims, &[]).expect("checked");
    let tables: Vec<Table> = papers.iter().flat_map(|paper| &paper.plans).map(table).collect();
    let places = claims.list().iter().flat_map(|claim| claim.places.iter().map(move |place| (claim, *place)));
    let rows = places
        .enumerate()
        .map(|(number, (claim, place))| verdict(&claim.id, place, number, claim.unit.as_deref()))
        .collect();
    let report = Report::assemble(&claims, rows).expect("fits");
    let machine =
        Machine { time: "2000-01-01 00:00 UTC".to_owned(), facts: vec![("memory", "1 GiB".to_owned())] };
    let page = Page {
        claims: &claims,
        report: &report,
        papers: &papers,
        tables: tables.iter().collect(),
        failures: vec![],
        machine,
        bands: Bands::built_in(&claims),
        emulated: Emulated::default(),
        only: &[],
    };
    page.html()
}

/// A directory for the pages; deleted at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("memferry-lab-page-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary files can be written");
        Self(path)
    }

    /// What the check says of a page: "passed", or what is wrong.
    fn check(&self, page: &str, once: bool) -> String {
        let file = self.0.join("report.html");
        std::fs::write(&file, page).expect("the directory is there");
        let browser = std::env::var("MEMFERRY_TEST_BROWSER").unwrap_or_else(|_| "chromium".to_owned());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/browser/report.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(browser).arg(&file);
        if once {
            command.env("MEMFERRY_TEST_ONCE", "1");
        } else {
            command.args(std::env::var_os("MEMFERRY_TEST_PICTURES"));
        }
        let output = command.output().expect("Python is there");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert_eq!(
            output.status.success(),
            said == "passed",
            "{said}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The page without the papers' values in one figure's charts.
fn without_values(page: &str, figure: &str) -> String {
    let (before, after) = page.split_once(&format!("id=\"figure-{figure}\"")).expect("it is there");
    let (own, after) = after.split_once("</figure>").expect("it ends");
    let own = own.replace("<g class=\"beside\">", "<g class=\"beside\" style=\"display: none\">");
    format!("{before}id=\"figure-{figure}\"{own}</figure>{after}")
}

#[test]
#[ignore = "needs Chromium and Python: ./x test --full lab-page"]
fn a_browser_shows_the_report() {
    let directory = Directory::new();
    let page = page();
    assert_eq!(directory.check(&page, false), "passed");
    let styled = |rule: &str| page.replace("</style>", &format!("{rule}</style>"));
    for (what, spoilt, complaint) in [
        ("a value that is not drawn", without_values(&page, "wicki-fig-04"), "wicki-fig-04: "),
        (
            "no word of the paper",
            page.replace("class=\"place none\"", "class=\"place\""),
            "no value of the paper",
        ),
        ("a table wider than a phone", styled("table.checks { min-width: 30rem }"), "too wide: "),
        (
            "charts that stay white",
            styled("figure svg [fill='#FFFFFF'] { fill: #fff !important }"),
            "contrast: ",
        ),
        ("a script", page.replace("</footer>", "<script>0</script></footer>"), "a script"),
        (
            "a command of another figure",
            page.replace("--only papa-hot --out", "--only papa-cold --out"),
            "papa-hot: ",
        ),
    ] {
        let said = directory.check(&spoilt, true);
        assert!(said.contains(complaint), "{what}: {said}");
    }
}

#[test]
fn the_printed_command_makes_the_same_file() {
    let claims = Claims::built_in().expect("checked");
    let figure = "markatos-remote-stores";
    let line = memferry_lab::report::command(figure);
    let words: Vec<&str> = line.split(' ').skip(2).collect();
    let directory = std::env::temp_dir().join(format!("memferry-lab-command-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("temporary files can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry-lab"));
    let command =
        command.args(words).current_dir(&directory).env("CARGO_TARGET_DIR", directory.join("target"));
    let output = command.output().expect("the program is built");
    let written = std::fs::read_to_string(directory.join(format!("figures/{figure}.csv")));
    let drawn = directory.join(format!("figures/{figure}.svg")).exists();
    std::fs::remove_dir_all(&directory).expect("made above");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let papers = experiments::prepare(&claims, &[figure.to_owned()]).expect("checked");
    let outcomes = papers.iter().map(|paper| paper.run(&claims).expect("runs"));
    let expected: String =
        outcomes.flat_map(|outcome| outcome.tables.iter().map(csv).collect::<Vec<_>>()).collect();
    assert_eq!(written.expect("the command wrote it"), expected);
    assert!(drawn);
}
