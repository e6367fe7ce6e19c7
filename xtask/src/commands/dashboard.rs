//! The test that opens the dashboard in a browser: a part of the full tests, and where the dashboard's picture comes from.

use crate::layout::{PRODUCT_WORKSPACE, package, test};
use crate::line::Line;

/// With a folder in `MEMFERRY_TEST_PICTURES` it leaves pictures there.
pub(super) fn dashboard_line() -> Line {
    let (file, name) = test::DASHBOARD;
    PRODUCT_WORKSPACE.cargo(&["test", "-p", package::CLI, "--test", file, "--", "--ignored", "--exact", name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browsers_test_exists() {
        let (file, name) = test::DASHBOARD;
        let path = format!("{}/../tests/two-process/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        assert!(std::fs::read_to_string(path).unwrap().contains(&format!("fn {name}()")));
        assert!(dashboard_line().to_string().ends_with(&format!("-- --ignored --exact {name}")));
    }
}
