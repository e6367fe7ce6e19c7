//! Every command has a page with an example, and texts name only commands, options and pages that exist.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::*;

/// All commands that have pages.
fn commands() -> Vec<Command> {
    fn add(command: &Command, found: &mut Vec<Command>) {
        found.push(command.clone());
        below(command).for_each(|below| add(below, found));
    }
    let mut found = Vec::new();
    add(&prepared(crate::Cli::command()), &mut found);
    found
}

/// The long options of a text, as it is read.
fn options(text: &str) -> Vec<String> {
    let text = text.replace("\\-", "-");
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
    words
        .filter_map(|word| word.strip_prefix("--"))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn has(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some(option) && !argument.is_hide_set())
}

/// The command that a line of a text runs, else the page's own.
fn command_of<'a>(line: &str, own: &'a Command, all: &'a [Command]) -> &'a Command {
    let line = line.replace("\\-", "-");
    let runs = |command: &&Command| {
        let name = command.get_bin_name().unwrap_or_default();
        line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let longest = all.iter().filter(runs).max_by_key(|command| command.get_bin_name().map(str::len));
    longest.unwrap_or(own)
}

#[test]
fn every_command_has_a_page() {
    let pages = pages(crate::Cli::command()).unwrap();
    let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["memferry.1", "memferry-config-check.1", "memferry-9p-serve.1", "memferry.toml.5"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("demo-client") || name.contains("manual-pages")));
    for (name, page) in &pages {
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            let count = page.lines().filter(|line| *line == format!(".SH {section}")).count();
            assert_eq!(count, 1, "{name}: {section}\n{page}");
        }
    }
}

#[test]
fn every_command_has_an_example() {
    for command in commands().iter().filter(|command| below(command).next().is_none()) {
        let name = name_of(command);
        let text = TEXTS.iter().find(|text| text.page == name);
        let text = text.unwrap_or_else(|| panic!("{name} has no row in TEXTS")).roff;
        let (_, examples) =
            text.split_once(".SH EXAMPLES\n").unwrap_or_else(|| panic!("{name} has no example"));
        let bin_name = command.get_bin_name().unwrap();
        assert!(examples.lines().any(|line| line.starts_with(bin_name)), "no example of {name} runs it");
    }
}

#[test]
fn texts_belong_to_commands() {
    let commands = commands();
    let names: BTreeSet<&str> = commands.iter().map(name_of).collect();
    let pages: BTreeSet<&str> = TEXTS.iter().map(|text| text.page).collect();
    assert_eq!(pages.len(), TEXTS.len(), "a page has two texts");
    assert!(pages.is_subset(&names), "{:?}", pages.difference(&names));
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manuals")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "roff") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(pages.contains(name), "TEXTS does not have {name}.roff");
        }
    }
}

#[test]
fn texts_name_only_options_that_exist() {
    let commands = commands();
    for text in TEXTS {
        let own = commands.iter().find(|command| name_of(command) == text.page).unwrap();
        assert!(!text.roff.contains(".SH OPTIONS"), "{}: options are declared with clap", text.page);
        // Lines that run another program have its options.
        for line in text.roff.lines().filter(|line| !line.starts_with("systemctl ")) {
            let command = command_of(line, own, &commands);
            for option in options(line) {
                assert!(has(command, &option), "{}: {} has no --{option}", text.page, name_of(command));
            }
        }
    }
}

#[test]
fn pages_link_to_pages_that_exist() {
    let pages = pages(crate::Cli::command()).unwrap();
    for (name, page) in &pages {
        for line in page.lines().filter_map(|line| line.strip_prefix(".BR memferry")) {
            let Some((rest, section)) = line
                .replace("\\-", "-")
                .split_once(" (")
                .map(|(rest, section)| (rest.to_owned(), section.chars().next().unwrap_or_default()))
            else {
                continue;
            };
            let linked = format!("memferry{rest}.{section}");
            assert!(pages.iter().any(|(other, _)| *other == linked), "{name} links to {linked}");
        }
    }
}

#[test]
fn defaults_do_not_depend_on_the_user() {
    let path = socket::service_path().display().to_string();
    for (name, page) in pages(crate::Cli::command()).unwrap() {
        assert!(!page.contains(&format!("[default: {path}]")), "{name}");
    }
}
