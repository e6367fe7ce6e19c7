//! The pages' command lines of engine processes are ones that these take.

use memferry_pages::mistakes;

fn check(mistakes: Vec<String>) {
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn command_lines_of_engines_parse() {
    check(mistakes::<memferry_engine_cuda::Options>("memferry-engine-cuda"));
    check(mistakes::<memferry_engine_dsa::Options>("memferry-engine-dsa"));
    check(mistakes::<memferry_engine_ioat::Options>("memferry-engine-ioat"));
    check(mistakes::<memferry_link::Arguments>("memferry-link"));
}

#[test]
fn lines_of_other_programs_are_mistakes() {
    assert!(!mistakes::<memferry_engine_cuda::Options>("memferry-engine-dsa").is_empty());
    assert!(!mistakes::<memferry_engine_dsa::Options>("memferry-link").is_empty());
}
