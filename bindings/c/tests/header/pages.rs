//! Writes the manual pages of the functions from the comments of memferry.h.
//!
//! ```text
//! // First sentence. Rest.            ─► NAME, DESCRIPTION        prototype ─► SYNOPSIS
//! // Last paragraph: MF_ERROR_X, ...  ─► ERRORS, with the meanings that the enumeration gives
//! // "Any thread.", to the end        ─► THREADS                  functions named ─► SEE ALSO
//! ```
//!
//! The overview memferry(7) is written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Day of the last change to the comments, for the footers.
const DATE: &str = "November 24, 2026";
/// How the sentence on threads begins. It and all after it are the section THREADS.
const THREADS: [&str; 3] = ["Any thread", "One thread at a time", "Each thread"];
/// Errors that the comments leave out: of wrong handles and pointers, and of faults of the library.
const EVERYWHERE: [&str; 5] = [
    "MF_ERROR_BAD_HANDLE",
    "MF_ERROR_FORKED",
    "MF_ERROR_NULL_POINTER",
    "MF_ERROR_UNALIGNED",
    "MF_ERROR_PANICKED",
];

/// A function of the header.
pub(crate) struct Function {
    pub(crate) name: String,
    result: String,
    arguments: Vec<String>,
    paragraphs: Vec<String>,
}

impl Function {
    /// The sentences before the one on threads in the last paragraph, and that one with the rest.
    fn errors_and_threads(&self) -> (&str, &str) {
        let last = self.paragraphs.last().map_or("", String::as_str);
        let at = THREADS.iter().filter_map(|words| last.find(words)).min().unwrap_or(last.len());
        (last[..at].trim(), &last[at..])
    }

    /// The first sentence and the rest of the first paragraph.
    fn summary(&self) -> (&str, &str) {
        let first = self.paragraphs.first().map_or("", String::as_str);
        first.split_once(". ").unwrap_or((first.trim_end_matches('.'), ""))
    }

    fn returns_an_error(&self) -> bool {
        self.result == "mf_error"
    }
}

/// All functions of the header, also the inline ones.
pub(crate) fn functions(header: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut comment = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        let inline = line.strip_prefix("/* ").and_then(|text| text.strip_suffix(" */"));
        if let Some(text) = line.strip_prefix("//").or(inline) {
            comment.push(text.trim().to_owned());
            continue;
        }
        let declares =
            line.starts_with(|first: char| first.is_ascii_alphabetic()) && !line.starts_with("typedef");
        let mut declaration = line.to_owned();
        while declares && !declaration.contains([';', '{']) {
            let Some(more) = lines.next() else { break };
            declaration += &format!(" {}", more.trim());
        }
        if declares && declaration.contains('(') {
            found.push(function(&declaration, &comment));
        }
        comment.clear();
    }
    found
}

fn function(declaration: &str, comment: &[String]) -> Function {
    let plain = ["MF_MUST_USE ", "static inline ", "enum ", "struct "]
        .iter()
        .fold(declaration.to_owned(), |text, word| text.replace(word, ""));
    let (before, after) = plain.split_once('(').unwrap();
    let (arguments, _) = after.split_once(')').unwrap();
    let at = before.rfind([' ', '*']).unwrap() + 1;
    let paragraphs = comment.split(String::is_empty).map(|lines| lines.join(" "));
    Function {
        name: before[at..].to_owned(),
        result: before[..at].trim().to_owned(),
        arguments: arguments.split(',').map(|one| one.trim().to_owned()).collect(),
        paragraphs: paragraphs.filter(|text| !text.is_empty()).collect(),
    }
}

/// The meaning of each error number.
pub(crate) fn meanings(header: &str) -> BTreeMap<String, String> {
    let mut meanings = BTreeMap::new();
    let mut meaning = String::new();
    for line in header.lines().map(str::trim) {
        match line.strip_prefix("// ") {
            Some(text) => meaning += &format!(" {text}"),
            None => {
                let name = line.split_once(" = ").map(|(name, _)| name);
                if let Some(name) = name.filter(|name| name.starts_with("MF_ERROR_")) {
                    meanings.insert(name.to_owned(), meaning.trim().to_owned());
                }
                meaning.clear();
            }
        }
    }
    meanings
}

/// Words of a text that begin with `prefix`, without what surrounds them.
fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(move |word| word.starts_with(prefix) && !word.ends_with('_'))
}

/// The errors that a function's comment names, and those of the functions that it refers to with "as".
pub(crate) fn errors<'a>(function: &'a Function, all: &'a [Function]) -> BTreeSet<&'a str> {
    let (own, _) = function.errors_and_threads();
    let mut found: BTreeSet<&str> = names(own, "MF_ERROR_").collect();
    let words: Vec<&str> = own.split_whitespace().collect();
    for pair in words.windows(2).filter(|pair| pair[0].eq_ignore_ascii_case("as")) {
        let other = pair[1].trim_end_matches(['.', ';', ',']);
        found.extend(all.iter().filter(|one| one.name == other).flat_map(|one| errors(one, all)));
    }
    if function.returns_an_error() {
        found.remove("MF_ERROR_NONE");
    }
    found
}

/// A paragraph with its names marked, each on a line of its own.
fn marked(text: &str, own: &str, all: &[Function]) -> String {
    let mut lines = String::new();
    let mut plain = String::new();
    for word in text.split_whitespace() {
        let core = word.trim_start_matches('(').trim_end_matches(['.', ',', ';', ':', ')']);
        let is_argument = core.len() > 2 && core.starts_with('`') && core.ends_with('`');
        let is_function = all.iter().any(|function| function.name == core);
        let marked = match core {
            _ if is_argument => format!("Fa {}", core.trim_matches('`')),
            _ if core == own => format!("Fn {core}"),
            _ if is_function => format!("Xr {core} 3"),
            _ if core.starts_with("MF_") => format!("Dv {core}"),
            _ if core.starts_with("mf_") && !core.ends_with('_') && !core.contains('.') => {
                format!("Vt {core}")
            }
            _ => {
                let starts_a_line = plain.is_empty() && word.starts_with(['.', '\'']);
                plain += if plain.is_empty() { "" } else { " " };
                plain += if starts_a_line { "\\&" } else { "" };
                plain += &word.replace('-', "\\-");
                if word.ends_with('.') {
                    let _ = writeln!(lines, "{}", std::mem::take(&mut plain));
                }
                continue;
            }
        };
        if !plain.is_empty() {
            let _ = writeln!(lines, "{}", std::mem::take(&mut plain));
        }
        let (name, rest) = marked.split_once(' ').unwrap();
        let (before, after) = word.split_once(core).unwrap();
        let spaced = |marks: &str| marks.chars().map(|mark| format!(" {mark}")).collect::<String>();
        let _ = writeln!(lines, ".{name}{} {rest}{}", spaced(before), spaced(after));
    }
    if !plain.is_empty() {
        let _ = writeln!(lines, "{plain}");
    }
    lines
}

/// The page of a function.
pub(crate) fn page(function: &Function, all: &[Function], meanings: &BTreeMap<String, String>) -> String {
    let name = &function.name;
    let (summary, rest) = function.summary();
    let (own_errors, threads) = function.errors_and_threads();
    let mut page = format!(
        ".\\\" Written from memferry.h; do not edit.\n.Dd {DATE}\n.Dt {} 3\n.Os memferry\n.Sh NAME\n.Nm {name}\n.Nd {}\n\
         .Sh SYNOPSIS\n.In memferry.h\n.Ft \"{}\"\n.Fo {name}\n",
        name.to_uppercase(),
        lower(summary).replace('`', "").replace('-', "\\-"),
        function.result,
    );
    for argument in &function.arguments {
        let _ = writeln!(page, ".Fa \"{argument}\"");
    }
    page += ".Fc\n.Sh DESCRIPTION\n";
    page +=
        &marked(&format!("{name} {}{}", lower(summary), if rest.is_empty() { "." } else { ". " }), name, all);
    page += &marked(rest, name, all);
    let last = function.paragraphs.len().saturating_sub(1).max(1);
    for paragraph in &function.paragraphs[1..last] {
        let _ = write!(page, ".Pp\n{}", marked(paragraph, name, all));
    }
    let errors = errors(function, all);
    if function.returns_an_error() {
        page += &marked("Returns MF_ERROR_NONE, which is 0, or an error.", name, all)
            .replace("Returns\n", ".Sh RETURN VALUES\nReturns\n");
        page += ".Sh ERRORS\n";
        let is_list = own_errors.split_whitespace().all(|word| word.starts_with("MF_ERROR_"));
        page += &if is_list { String::new() } else { marked(own_errors, name, all) };
        page += ".Bl -tag -width Ds\n";
        for error in errors.iter().copied() {
            let _ = write!(page, ".It Dv {error}\n{}", marked(&meanings[error], name, all));
        }
        page += ".El\n.Pp\nAny call may also give\n";
        let others: Vec<&str> = EVERYWHERE.into_iter().filter(|error| !errors.contains(error)).collect();
        page += &marked(&list(&others), name, all);
    }
    if !threads.is_empty() {
        let _ = write!(page, ".Sh THREADS\n{}", marked(threads, name, all));
    }
    let text = function.paragraphs.join(" ");
    let named: BTreeSet<&str> = names(&text, "mf_").filter(|other| *other != name).collect();
    let named = named.into_iter().filter(|other| all.iter().any(|function| function.name == *other));
    page += ".Sh SEE ALSO\n";
    named.for_each(|other| page += &format!(".Xr {other} 3 ,\n"));
    page + ".Xr memferry 7\n"
}

/// The sentence without its capital letter, unless that belongs to a name.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match letters.next() {
        Some(first) if !sentence.starts_with("MF_") => first.to_lowercase().chain(letters).collect(),
        _ => sentence.to_owned(),
    }
}

/// Names with commas between them and "or" before the last.
fn list(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}.", others.join(", ")),
        _ => format!("{}.", names.concat()),
    }
}
