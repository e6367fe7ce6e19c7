//! What files say, what is wrong in them, and that the default file is in step with the code.

use memferry_service::PolicyKind;

use super::*;
use crate::config::options::Options;

fn mistakes(text: &str) -> Vec<(usize, String)> {
    let mistakes = parse(text).unwrap_err();
    mistakes.into_iter().map(|mistake| (mistake.line, mistake.message)).collect()
}

/// The one mistake in a text; `parts` are in what is said about it.
fn assert_mistake(text: &str, line: usize, parts: &[&str]) {
    let found = mistakes(text);
    assert_eq!(found.len(), 1, "{text:?}: {found:?}");
    assert_eq!(found[0].0, line, "{text:?}: {found:?}");
    for part in parts {
        assert!(found[0].1.contains(part), "'{part}' is not in: {}", found[0].1);
    }
}

#[test]
fn the_default_file_changes_nothing_and_its_lines_are_the_defaults() {
    let file = text::default_file();
    assert_eq!(parse(&file), Ok(Options::default()));
    // A line such as `#workers = 3` is an option, `# workers are …` is prose.
    let is_option =
        |line: &str| line.strip_prefix('#').is_some_and(|rest| rest.starts_with(char::is_alphabetic));
    let taken_off: Vec<_> =
        file.lines().map(|line| if is_option(line) { &line[1..] } else { line }).collect();
    let options = parse(&taken_off.join("\n")).unwrap();
    assert_eq!(options.clone().resolve(), Options::default().resolve());
    let named = SECTIONS.iter().map(|section| section.entries.len()).sum::<usize>();
    assert_eq!(file.lines().filter(|line| is_option(line)).count(), named);
    // Every field is set by some line: none of the debug form is `None`.
    let told = format!("{options:?}").replace("OwnPolicy(None)", "none").replace("ModulePath(None)", "off");
    assert!(!told.contains("None"), "{told}");
    options.resolve().service.check().unwrap();
}

#[test]
fn a_file_sets_what_it_names_and_the_command_line_wins() {
    let file = parse("[service]\nworkers = 2\nmode = \"660\"\n[quotas]\nbytes = 0x10\n").unwrap();
    assert_eq!((file.workers, file.mode, file.quota_bytes), (Some(2), Some(0o660), Some(16)));
    let line = Options { workers: Some(5), ..Options::default() };
    let settings = line.over(file).resolve();
    assert_eq!((settings.service.workers, settings.mode, settings.service.quotas.bytes), (5, 0o660, 16));
    assert_eq!(settings.service.channels_per_worker, 32);
}

#[test]
fn empty_files_marks_of_editors_and_their_line_ends_are_no_mistakes() {
    for text in ["", "\n\n", "# nothing\n", "\u{feff}", "[service]\n"] {
        assert_eq!(parse(text), Ok(Options::default()), "{text:?}");
    }
    let windows = "\u{feff}[service]\r\nworkers = 2\r\nchannels = 4\r\n";
    assert_eq!(parse(windows).unwrap().channels, Some(4));
    assert_mistake("\u{feff}[service]\r\nworkers = 2\r\nworker = 4\r\n", 3, &["did you mean 'workers'?"]);
}

#[test]
fn unknown_names_are_refused_with_the_nearest_one() {
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
    assert_mistake("[weather]\n", 1, &["the sections are [service] and [policy]"]);
    assert_mistake("service = 3\n", 1, &["write [service]"]);
}

#[test]
fn values_outside_their_range_or_of_another_kind_name_their_line() {
    let service = |line: &str| format!("[service]\n# workers\n{line}\n");
    let cases = [
        ("workers = 0", "'workers' is 0, it has to be from 1 to 64"),
        ("workers = 65", "from 1 to 64"),
        ("workers = -1", "at least 0"),
        ("workers = 99999999999999999999", "too large"),
        ("workers = 5000000000", "too large"),
        ("workers = \"2\"", "is a text, it has to be a whole number without quotes"),
        ("workers = 1.5", "is a number with a fraction"),
        ("workers = [1]", "is a list"),
        ("workers = 2024-01-01", "is a date"),
        ("chunk = 63", "from 64 to 2^30"),
        ("mode = 660", "octal and in quotes"),
        ("mode = \"9\"", "'9' is no octal number"),
        ("mode = \"7777\"", "the largest is 777"),
        ("policy = \"none\"", "choose one of shared, exclusive, priority, deadline, weighted, rate-limit"),
        ("log-format = \"xml\"", "choose one of text, json"),
        ("pin-workers = \"all\"", "choose one of off, spread"),
        ("pin-workers = true", "text in quotes"),
        ("module-device = \"dev/memferry\"", "neither \"off\" nor an absolute path"),
        ("module-device = true", "text in quotes"),
        ("worker-class = \"rt\"", "choose one of inherited, batch, idle, fifo"),
        ("sandbox = \"yes\"", "true or false, without quotes"),
        ("sandbox = 1", "true or false"),
        ("socket = \"\"", "such as"),
        ("socket = 3", "a text in quotes"),
    ];
    for (line, expected) in cases {
        assert_mistake(&service(line), 3, &[expected]);
    }
    assert_mistake("[quotas]\nwaiting = 2000000\n", 2, &["from 0 to 2^20"]);
}

#[test]
fn numbers_of_policies_are_checked_alone_and_together() {
    for (line, expected) in [
        ("low-policy = \"fair\"", "there is no policy 'fair'"),
        ("high-policy = 1", "a text in quotes"),
        ("slice-us = -1", "at least 0"),
        ("class-weights = [1, 2]", "has 2 values"),
        ("class-weights = 4", "a list of three whole numbers"),
        ("class-weights = [1, 2, \"x\"]", "holds a value that is a text"),
        ("user-weights = [\"1000\"]", "such as 1000=3"),
        ("user-weights = [3]", "a text in quotes"),
        ("rate = 1.5", "a number with a fraction"),
    ] {
        assert_mistake(&format!("[policy]\nburst = 1\n{line}\n"), 3, &[expected]);
    }
    // What is wrong only together is told where the section begins.
    for (lines, expected) in [
        ("slice-us = 0", "above zero"),
        ("slice-us = 500\nperiod-us = 500", "shorter than the period"),
        ("rate = 0", "the rate is zero"),
        ("capacity = 0", "the capacity is zero"),
        ("class-weights = [1, 0, 1]", "weight is zero"),
        ("user-weights = [\"7=0\"]", "weight is zero"),
        ("high-policy = \"priority\"", "for all classes together"),
    ] {
        assert_mistake(&format!("[service]\nworkers = 1\n[policy]\n{lines}\n"), 3, &[expected]);
    }
    let text = "[service]\npolicy = \"priority\"\n[policy]\nlow-policy = \"rate-limit\"\nslice-us = 5\nuser-weights = [\"7=2\"]\n";
    let settings = parse(text).unwrap().resolve().service.policy;
    assert_eq!((settings.kind, settings.classes[0]), (PolicyKind::Priority, Some(PolicyKind::RateLimit)));
    assert_eq!((settings.slice.as_micros(), settings.user_weights.get(&7)), (5, Some(&2)));
}

#[test]
fn what_is_no_toml_is_told_with_its_line() {
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
fn all_mistakes_are_told_in_the_order_of_their_lines() {
    let found = mistakes("[quotas]\nbites = 1\n[service]\nworkers = 0\nchanels = 1\n");
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn the_help_names_the_defaults_as_they_are() {
    use clap::Args;
    let command = Options::augment_args(clap::Command::new("serve"));
    let settings = Options::default().resolve();
    let of_quota = |section: &str, key: &str| match section {
        "quotas" => format!("quota-{key}"),
        // Given once for each user on the command line.
        "classes" => key.trim_end_matches('s').to_owned(),
        "policy" if key == "user-weights" => "user-weight".to_owned(),
        _ => key.to_owned(),
    };
    for (section, entry) in
        SECTIONS.iter().flat_map(|section| section.entries.iter().map(move |entry| (section, entry)))
    {
        let name = of_quota(section.name, entry.key);
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(&name));
        let help = argument.unwrap_or_else(|| panic!("there is no --{name}")).get_help().unwrap().to_string();
        let shown = (entry.shown)(&settings).replace('"', "").replace("[]", "none");
        let shown = shown.replace(['[', ']', ' '], "");
        // These depend on the machine and the user, and are told in words.
        let told = matches!(entry.key, "workers" | "socket") || help.contains(&format!("[default: {shown}]"));
        assert!(told, "--{name}: {help} is not {shown}");
    }
}
