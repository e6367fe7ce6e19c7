//! Parsing, error messages, and that flags, files and documentation agree with the table.
//!
//! `MEMFERRY_WRITE_OPTIONS=1 cargo test -p memferry-cli options_page` regenerates the page of the guide.

use std::ffi::OsString;
use std::path::Path;

use memferry_service::PolicyKind;
use memferry_service::config::ConfigError;
use toml::Value;

use super::file::parse;
use super::table::{Row, SECTIONS};
use super::*;

fn mistakes(text: &str) -> Vec<(usize, String)> {
    let mistakes = parse(text).unwrap_err();
    mistakes.into_iter().map(|mistake| (mistake.line, mistake.message)).collect()
}

/// Asserts that a text has one mistake, on `line`, with `parts` in its message.
fn assert_mistake(text: &str, line: usize, parts: &[&str]) {
    let found = mistakes(text);
    assert_eq!(found.len(), 1, "{text:?}: {found:?}");
    assert_eq!(found[0].0, line, "{text:?}: {found:?}");
    for part in parts {
        assert!(found[0].1.contains(part), "'{part}' is missing in: {}", found[0].1);
    }
}

/// The settings of a text with these flags.
fn under_flags(text: &str, flags: &[&str]) -> Settings {
    use clap::FromArgMatches;
    let command = Flags::<Everything>::augment_args(clap::Command::new("serve").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).unwrap();
    let mut settings = parse(text).unwrap();
    Flags::<Everything>::from_arg_matches(&matches).unwrap().apply(&mut settings).unwrap();
    settings
}

fn rows() -> impl Iterator<Item = (&'static str, &'static Row)> {
    SECTIONS.iter().flat_map(|section| section.rows.iter().map(|row| (section.name, row)))
}

/// `#workers = 3` is an option, `# workers are …` is a comment.
fn is_option(line: &str) -> bool {
    line.strip_prefix('#').is_some_and(|rest| rest.starts_with(char::is_alphabetic))
}

#[test]
fn the_default_file_lists_the_defaults() {
    let file = text::default_file();
    assert_eq!(parse(&file), Ok(Settings::default()));
    let uncommented: Vec<_> =
        file.lines().map(|line| if is_option(line) { &line[1..] } else { line }).collect();
    assert_eq!(parse(&uncommented.join("\n")), Ok(Settings::default()));
    assert_eq!(file.lines().filter(|line| is_option(line)).count(), rows().count());
    Settings::default().daemon.service.check().unwrap();
}

/// Settings in which only this option differs from the default.
fn changed(row: &Row) -> Settings {
    let defaults = Settings::default();
    let mut candidates: Vec<Value> = row.place.choices().into_iter().map(Value::from).collect();
    match row.place.to_file(&defaults) {
        Value::Integer(number) => candidates.push(Value::Integer(number + 1)),
        Value::Boolean(switch) => candidates.push(Value::Boolean(!switch)),
        _ => {
            candidates.extend([Value::from("/elsewhere"), Value::from("640")]);
            candidates.extend([Value::from(vec![3, 2, 1]), Value::from(vec![7]), Value::from(vec!["7=2"])]);
            candidates.push(Value::from(vec!["a user=7"]));
        }
    }
    let set = |value| {
        let mut settings = Settings::default();
        row.set_from_file(&mut settings, &value).ok().map(|()| settings)
    };
    let found = candidates.into_iter().filter_map(set).find(|settings| *settings != defaults);
    found.unwrap_or_else(|| panic!("no value other than the default is known for '{}'", row.key))
}

/// A value in the syntax of a flag, once per element if the flag is repeated.
fn flags_for(row: &Row, value: &Value) -> Vec<OsString> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Array(list) if row.place.is_repeated() => list.iter().map(|one| text(one).into()).collect(),
        Value::Array(list) => vec![list.iter().map(text).collect::<Vec<_>>().join(",").into()],
        value => vec![text(value).into()],
    }
}

#[test]
fn options_round_trip() {
    for (section, row) in rows() {
        let expected = changed(row);
        let value = row.place.to_file(&expected);
        assert_eq!(parse(&format!("[{section}]\n{} = {value}\n", row.key)), Ok(expected.clone()));
        let mut settings = Settings::default();
        row.place.set_from_flag(&mut settings, &flags_for(row, &value)).unwrap();
        assert_eq!(settings, expected, "--{}", row.flag);
        let others = rows().filter(|(_, other)| !std::ptr::eq(*other, row));
        for (_, other) in others {
            let shared = other.place.to_file(&expected) != other.place.to_file(&Settings::default());
            assert!(!shared, "'{}' and '{}' set the same field", row.key, other.key);
        }
    }
}

#[test]
fn values_that_contradict_each_other_are_mistakes() {
    let twice = "[policy]\nuser-weights = [\"1=2\", \"7=1\", \"1=3\"]\n";
    assert_mistake(twice, 2, &["'user-weights' is invalid: user 1 has two weights"]);
    let long = format!("[service]\nsocket = \"/{}\"\n", "s".repeat(107));
    assert_mistake(&long, 2, &["'socket' is invalid", "at most 107 bytes"]);
    assert_mistake("[service]\nsocket = \"/a\\u0000b\"\n", 2, &["none is zero"]);
    assert!(parse(&long.replace("ss\"", "s\"")).is_ok(), "107 bytes fit");
}

#[test]
fn a_changed_policy_shows_no_defaults() {
    let help = |mut command: clap::Command| command.render_help().to_string();
    let policies = help(Flags::<Policies>::augment_args(clap::Command::new("policy")));
    assert!(policies.contains("unchanged") && !policies.contains("12000"), "{policies}");
    assert!(help(Flags::<Everything>::augment_args(clap::Command::new("serve"))).contains("12000"));
}

#[test]
fn every_option_is_documented() {
    let mut flags = std::collections::BTreeSet::new();
    for (section, row) in rows() {
        let words = row.help.split_whitespace().count();
        assert!(words >= 2 && !row.help.ends_with('.'), "[{section}] {}: '{}'", row.key, row.help);
        assert!(!row.unit.is_empty(), "[{section}] {}", row.key);
        assert!(flags.insert(row.flag), "--{} is declared twice", row.flag);
    }
}

#[test]
fn the_options_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/options.md");
    let written = text::guide();
    if std::env::var_os("MEMFERRY_WRITE_OPTIONS").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == written,
        "{} is out of date: run this test with MEMFERRY_WRITE_OPTIONS=1",
        path.display()
    );
}

/// The service's error for a number given as a flag, which no row checks.
fn refusal(row: &Row, number: u64) -> Option<ConfigError> {
    let mut settings = Settings::default();
    row.place.set_from_flag(&mut settings, &[number.to_string().into()]).ok()?;
    settings.daemon.service.check().err()
}

#[test]
fn the_service_checks_the_bounds_of_rows() {
    for (section, row) in rows() {
        let Some(bounds) = row.bounds else {
            let refused = [0, u64::from(u32::MAX), u64::MAX].map(|number| refusal(row, number));
            let refused = refused.iter().any(|error| matches!(error, Some(ConfigError::Value(_))));
            assert!(!refused, "[{section}] {} has bounds that its row does not state", row.key);
            continue;
        };
        assert_eq!([bounds.min, bounds.max].map(|number| refusal(row, number)), [None, None], "{}", row.key);
        let beyond = refusal(row, bounds.max + 1);
        assert!(matches!(beyond, Some(ConfigError::Value(error)) if error.bounds == bounds), "{}", row.key);
    }
}

#[test]
fn a_flag_out_of_bounds_is_named() {
    let command = Flags::<Everything>::augment_args(clap::Command::new("serve").no_binary_name(true));
    let error = command.try_get_matches_from(["--channels", "0"]).unwrap_err().to_string();
    assert!(error.contains("--channels") && error.contains("it has to be from 1 to 1024"), "{error}");
}

#[test]
fn flags_override_the_file() {
    let text = "[service]\nworkers = 2\nmode = \"660\"\n[quotas]\nbytes = 0x10\n";
    let file = parse(text).unwrap().daemon;
    assert_eq!((file.service.workers, file.mode, file.service.quotas.bytes), (2, 0o660, 16));
    let settings = under_flags(text, &["--workers", "5"]).daemon;
    assert_eq!((settings.service.workers, settings.mode, settings.service.quotas.bytes), (5, 0o660, 16));
    assert_eq!(settings.service.channels_per_worker, 32);
    let lists = "[classes]\nhigh-users = [1, 2]\n[policy]\nuser-weights = [\"1=2\"]\n";
    let settings = under_flags(lists, &["--high-user", "7", "--high-user", "8", "--user-weight=3=4"]);
    assert_eq!(settings.daemon.service.high_users, [7, 8]);
    assert_eq!(settings.daemon.service.policy.user_weights, [(3, 4)].into());
}

#[test]
fn empty_files_and_editor_marks_are_valid() {
    for text in ["", "\n\n", "# nothing\n", "\u{feff}", "[service]\n"] {
        assert_eq!(parse(text), Ok(Settings::default()), "{text:?}");
    }
    let windows = "\u{feff}[service]\r\nworkers = 2\r\nchannels = 4\r\n";
    assert_eq!(parse(windows).unwrap().daemon.service.channels_per_worker, 4);
    assert_mistake("\u{feff}[service]\r\nworkers = 2\r\nworker = 4\r\n", 3, &["did you mean 'workers'?"]);
}

#[test]
fn unknown_names_suggest_the_nearest() {
    assert_mistake(
        "[service]\nworker = 2\n",
        2,
        &["[service] has no option 'worker'", "did you mean 'workers'?"],
    );
    assert_mistake("[service]\ngrace_ms = 2\n", 2, &["did you mean 'grace-ms'?"]);
    assert_mistake("[service]\n\nsessions = 2\n", 3, &["belongs below [quotas]"]);
    assert_mistake("[service]\nzzzzzzzzz = 2\n", 2, &["it has socket, mode, workers"]);
    assert_mistake("\n[quota]\nbytes = 2\n", 2, &["no section 'quota'", "did you mean [quotas]?"]);
    assert_mistake("workers = 2\n", 1, &["write it below [service]"]);
    assert_mistake("[weather]\n", 1, &["the sections are [service], [policy]"]);
    assert_mistake("service = 3\n", 1, &["write [service]"]);
}

#[test]
fn wrong_values_are_reported_with_their_line() {
    let service = |line: &str| format!("[service]\n# workers\n{line}\n");
    let cases = [
        ("workers = 0", "'workers' is 0, it has to be from 1 to 64"),
        ("workers = 65", "from 1 to 64"),
        ("workers = -1", "at least 0"),
        ("workers = 99999999999999999999", "too large"),
        ("workers = 5000000000", "too large"),
        ("workers = \"2\"", "is a string, it has to be a whole number without quotes"),
        ("workers = 1.5", "is a number with a fraction"),
        ("workers = [1]", "is a list"),
        ("workers = 2024-01-01", "is a date"),
        ("chunk = 63", "from 64 to 2^30"),
        ("mode = 660", "an octal number in quotes"),
        ("mode = \"9\"", "'9' is not an octal number"),
        ("mode = \"7777\"", "the largest is 777"),
        ("policy = \"none\"", "choose one of shared, exclusive, priority, deadline, weighted, rate-limit"),
        ("log-format = \"xml\"", "choose one of text, json"),
        ("pin-workers = \"all\"", "choose one of off, spread"),
        ("pin-workers = true", "string in quotes"),
        ("module-device = \"dev/memferry\"", "neither \"off\" nor an absolute path"),
        ("module-device = true", "string in quotes"),
        ("worker-class = \"rt\"", "choose one of inherited, batch, idle, fifo"),
        ("sandbox = \"yes\"", "true or false, without quotes"),
        ("sandbox = 1", "true or false"),
        ("socket = \"\"", "such as"),
        ("socket = 3", "a string in quotes"),
    ];
    for (line, expected) in cases {
        assert_mistake(&service(line), 3, &[expected]);
    }
    assert_mistake("[quotas]\nwaiting = 2000000\n", 2, &["from 0 to 2^20"]);
}

#[test]
fn policy_numbers_are_checked_alone_and_together() {
    for (line, expected) in [
        ("low-policy = \"fair\"", "there is no policy 'fair'"),
        ("high-policy = 1", "a string in quotes"),
        ("slice-us = -1", "at least 0"),
        ("class-weights = [1, 2]", "has 2 values"),
        ("class-weights = 4", "a list of three whole numbers"),
        ("class-weights = [1, 2, \"x\"]", "contains a value that is a string"),
        ("user-weights = [\"1000\"]", "such as 1000=3"),
        ("user-weights = [3]", "a string in quotes"),
        ("rate = 1.5", "a number with a fraction"),
    ] {
        assert_mistake(&format!("[policy]\nburst = 1\n{line}\n"), 3, &[expected]);
    }
    // A mistake of several options together is reported at the section's line.
    for (lines, expected) in [
        ("slice-us = 0", "longer than zero"),
        ("slice-us = 500\nperiod-us = 500", "shorter than the period"),
        ("rate = 0", "the rate is zero"),
        ("capacity = 0", "the capacity is zero"),
        ("class-weights = [1, 0, 1]", "weight is zero"),
        ("user-weights = [\"7=0\"]", "weight is zero"),
        ("high-policy = \"priority\"", "cover all classes"),
    ] {
        assert_mistake(&format!("[service]\nworkers = 1\n[policy]\n{lines}\n"), 3, &[expected]);
    }
    let text = "[service]\npolicy = \"priority\"\n[policy]\nlow-policy = \"rate-limit\"\nslice-us = 5\nuser-weights = [\"7=2\"]\n";
    let settings = parse(text).unwrap().daemon.service.policy;
    assert_eq!((settings.kind, settings.classes[0]), (PolicyKind::Priority, Some(PolicyKind::RateLimit)));
    assert_eq!((settings.slice.as_micros(), settings.user_weights.get(&7)), (5, Some(&2)));
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    for (text, line) in [
        ("[service]\nworkers 2\n", 2),
        ("[service\nworkers = 2\n", 1),
        ("[service]\nworkers = 2\nworkers = 3\n", 3),
        ("[service]\nsocket = \"/run\n", 2),
    ] {
        assert_mistake(text, line, &["memferry config default"]);
    }
}

#[test]
fn mistakes_are_reported_in_line_order() {
    let found = mistakes("[quotas]\nbites = 1\n[service]\nworkers = 0\nchanels = 1\n");
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn the_help_shows_the_defaults() {
    let command = Flags::<Everything>::augment_args(clap::Command::new("serve"));
    let settings = Settings::default();
    for (_, row) in rows() {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(row.flag));
        let help =
            argument.unwrap_or_else(|| panic!("there is no --{}", row.flag)).get_help().unwrap().to_string();
        let shown = row.place.to_file(&settings).to_string().replace('"', "").replace("[]", "none");
        let shown = shown.replace(['[', ']', ' '], "");
        // The defaults of these depend on the machine and the user and are described in words.
        let shows_default =
            matches!(row.key, "workers" | "socket") || help.contains(&format!("[default: {shown}]"));
        assert!(shows_default, "--{}: {help} does not show {shown}", row.flag);
    }
}

#[test]
fn what_the_service_refuses_is_a_mistake() {
    let engines = |lines: &str| format!("[service]\nworkers = 1\n[engines]\nprocesses = [{lines}]\n");
    for (lines, part) in [
        ("\"A! user=1\"", "an engine is called \"A!\""),
        ("\"a user=1\", \"a user=2\"", "two engines are called a"),
        ("\"a user=1 stall-ms=0\"", "stall-ms"),
    ] {
        assert_mistake(&engines(lines), 3, &[part]);
    }
}

#[test]
fn messages_control_no_terminal() {
    assert_mistake("\"\\u001b[2J\" = 1\n", 1, &["'\\u{1b}[2J'"]);
    assert_mistake("[service]\n\"\\u0007\" = 1\n", 2, &["'\\u{7}'"]);
}
