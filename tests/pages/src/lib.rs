//! The examples and command lines of the pages, for tests that hold them to the programs.
//!
//! ```text
//! every Markdown file of the tree ─► Page ─┬─ fenced blocks, perhaps marked `<!-- not run: REASON -->`
//!                                          └─ code in the text and indented lines
//!      mistakes::<Parser>(program) ◄───────┘  the lines that run a program, by its own parser
//! ```
//!
//! Nothing is run here: `packaging/tests/follow.py` runs the console blocks, and the tests of each language run its examples.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

/// What stands before a block that no test runs.
const MARK: &str = "<!-- not run: ";
/// Users that packages make, with one that each machine has.
const USERS: [(&str, &str); 2] = [("user=memferry-engine", "user=root"), ("user=memferry-link", "user=root")];

/// A Markdown file.
#[derive(Debug)]
pub struct Page {
    /// Below the tree, as `docs/guide/tune.md`.
    pub path: String,
    pub blocks: Vec<Block>,
    /// Each piece of code outside fenced blocks, with its line.
    pub codes: Vec<(usize, Code)>,
    /// Lines of markers that stand before no block.
    pub stray: Vec<usize>,
}

/// Code outside fenced blocks.
#[derive(Debug, PartialEq, Eq)]
pub enum Code {
    /// Code in the text, without its backticks.
    Inline(String),
    /// A line that begins with four blanks.
    Indented(String),
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    /// The line of its opening fence.
    pub line: usize,
    pub language: String,
    pub text: String,
    /// Why no test runs it, if the page says so.
    pub reason: Option<String>,
}

/// The root of the tree.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page of the tree, in the order of their paths.
///
/// # Panics
/// If the tree cannot be read.
#[must_use]
pub fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    find(&root(), "", &mut found);
    found.sort();
    let page = |path: String| {
        let text = fs::read_to_string(root().join(&path)).expect("a page is text");
        Page::parse(path, &text)
    };
    found.into_iter().map(page).collect()
}

fn find(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree") {
        let entry = entry.expect("a folder of the tree");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && !name.starts_with('.') && name != "target" {
            find(&entry.path(), &format!("{path}/"), found);
        } else if !is_folder && name.ends_with(".md") {
            found.push(path);
        }
    }
}

impl Page {
    /// Reads the text of a page.
    #[must_use]
    pub fn parse(path: impl Into<String>, text: &str) -> Self {
        let mut page = Self { path: path.into(), blocks: Vec::new(), codes: Vec::new(), stray: Vec::new() };
        let mut open: Option<Block> = None;
        let mut marked: Option<(usize, String)> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let fence = line.trim_start().strip_prefix("```");
            match (open.take(), fence) {
                (Some(block), Some(_)) => page.blocks.push(block),
                (Some(mut block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                    open = Some(block);
                }
                (None, Some(language)) => {
                    let language = language.trim().to_owned();
                    let reason = marked.take().map(|(_, reason)| reason);
                    open = Some(Block { line: number, language, text: String::new(), reason });
                }
                (None, None) => page.read_line(number, line, &mut marked),
            }
        }
        page.stray.extend(marked.map(|(line, _)| line));
        page
    }

    fn read_line(&mut self, number: usize, line: &str, marked: &mut Option<(usize, String)>) {
        self.stray.extend(marked.take().map(|(line, _)| line));
        if let Some(reason) = line.trim_start().strip_prefix(MARK) {
            *marked = Some((number, reason.trim_end_matches("-->").trim().to_owned()));
        } else if let Some(indented) = line.strip_prefix("    ") {
            self.codes.push((number, Code::Indented(indented.trim().to_owned())));
        } else {
            let inline = line.split('`').skip(1).step_by(2).map(|code| Code::Inline(code.to_owned()));
            self.codes.extend(inline.map(|code| (number, code)));
        }
    }

    /// What is wrong with the lines that run `program`, which takes them by the parser `P`.
    fn mistakes<P: Parser>(&self, program: &str) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |number: usize, line: &str, is_whole: bool| {
            let Some(Err(error)) = of_program(line, program).map(P::try_parse_from) else { return };
            let is_wrong = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
                ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
                _ => is_whole,
            };
            if is_wrong {
                mistakes.push(format!("{}:{number}: `{line}`: {error}", self.path));
            }
        };
        for block in self.blocks.iter().filter(|block| block.language == "console") {
            for (number, line) in (block.line + 1..).zip(block.text.lines()) {
                typed(line).into_iter().for_each(|command| check(number, command, true));
            }
        }
        for (number, code) in &self.codes {
            match code {
                Code::Inline(line) | Code::Indented(line) => check(*number, line, false),
            }
        }
        mistakes
    }
}

/// What is wrong with the lines of all pages that run `program`, which takes them by the parser `P`: whole lines at a prompt have to parse,
/// others may lack arguments. `x lab` is for what passes the rest of the line on.
#[must_use]
pub fn mistakes<P: Parser>(program: &str) -> Vec<String> {
    pages().iter().flat_map(|page| page.mistakes::<P>(program)).collect()
}

/// The words of a shell's line up to a comment, a redirection or a pipe.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for letter in line.chars().chain([' ']) {
        match letter {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {
                found.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()))
            }
            '#' | '>' | '|' | '&' if !is_quoted && word.is_empty() => break,
            _ => word.push(letter),
        }
    }
    found
}

/// The words from the program's name on, of a line that runs it, perhaps by sudo.
fn of_program(line: &str, program: &str) -> Option<Vec<String>> {
    let line = USERS.iter().fold(line.to_owned(), |line, (name, instead)| line.replace(name, instead));
    let mut words = words(&line);
    if words.first().is_some_and(|word| word == "sudo") {
        let skipped = if words.get(1).is_some_and(|word| word == "-u") { 3 } else { 1 };
        words.drain(..skipped.min(words.len()));
    }
    // Variables, and lines of units.
    let assigned = words.iter().take_while(|word| word.contains('=')).count();
    words.drain(..assigned);
    let (program, command) =
        program.split_once(' ').map_or((program, None), |(name, rest)| (name, Some(rest)));
    let is_program = words.first()?.rsplit('/').next()? == program;
    if let Some(command) = command {
        words = words.split_off(1);
        (words.first()? == command).then_some(())?;
    }
    // Pages write this for any command.
    (is_program && words.get(1).is_none_or(|word| word != "COMMAND")).then_some(words)
}

/// What a reader types at a prompt, as `$ memferry` or `alpha$  memferry`.
fn typed(line: &str) -> Option<&str> {
    let (prompt, command) = line.split_once(['$', '#'])?;
    (prompt.chars().all(char::is_alphanumeric) && command.starts_with(' ')).then_some(command.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    /// A stand-in for a program.
    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Copy(Copy),
        Status(Status),
    }

    #[derive(Args)]
    struct Copy {
        source: String,
        destination: String,
    }

    #[derive(Args)]
    struct Status {
        #[arg(long)]
        watch: bool,
    }

    fn count(text: &str) -> usize {
        Page::parse("page.md", text).mistakes::<Program>("program").len()
    }

    #[test]
    fn wrong_command_lines_are_found() {
        let block = |line| count(&format!("```console\n{line}\n```\n"));
        for right in [
            "$ program status --watch   # figures",
            "alpha$  program copy a b",
            "$ sudo -u user program status",
            "$ ./target/release/program status &",
            "$ other add --path PATH/program --nonsense",
            "program: output",
            "$ program COMMAND --help",
            "$ DeviceAllow=/dev/program rw",
        ] {
            assert_eq!(block(right), 0, "{right}");
        }
        for wrong in
            ["$ program nonsense", "$ LOG=x program status --nonsense", "beta# program copy a", "$ ./program"]
        {
            assert_eq!(block(wrong), 1, "{wrong}");
        }
        assert_eq!(count("Both `program copy` and `program status --watch` do.\n"), 0);
        assert_eq!(count("Neither `program status --nonsense` nor `program nonsense` does.\n"), 2);
        assert_eq!(count("Text\n\n    program copy\n    program nonsense\n"), 1);
        assert_eq!(count("```text\n$ program nonsense\n```\n"), 0);
        let passed = |program| Page::parse("p.md", "`./x lab nonsense`\n").mistakes::<Program>(program).len();
        assert_eq!([passed("x lab"), passed("x bench"), passed("x")], [1, 0, 1]);
    }

    #[test]
    fn markers_belong_to_the_block_behind_them() {
        let page = Page::parse("p.md", "<!-- not run: why -->\n```c\nx\n```\n```ini\ny\n```\n");
        let [first, second] = &page.blocks[..] else { panic!("{page:?}") };
        assert_eq!((first.line, first.language.as_str(), first.text.as_str()), (2, "c", "x\n"));
        assert_eq!((first.reason.as_deref(), second.reason.as_deref()), (Some("why"), None));
        assert!(page.stray.is_empty());
        assert_eq!(Page::parse("p.md", "<!-- not run: why -->\n\n```c\nx\n```\n").stray, [1]);
        assert_eq!(Page::parse("p.md", "text\n<!-- not run: why -->").stray, [2]);
    }
}
