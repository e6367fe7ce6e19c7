//! The facts about a Rust file that the rules need, from one walk over its tokens.
//!
//! ```text
//! text ──lex──► tokens ──walk──► functions, uses of `unsafe`, attributes that permit it, inline modules
//!                                (also inside macro calls and macro definitions)
//! ```
//!
//! Tokens instead of a syntax tree, because a parser does not read the body of a macro call, where property tests and loom
//! models are. The walk knows only the grammar that it needs: a function is `fn NAME ... {}`, an item ends at its first brace
//! group or semicolon, and an attribute belongs to the item that follows it.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its `fn`.
    pub(crate) line: usize,
    /// From `fn` to the closing brace, inclusive.
    pub(crate) length: usize,
}

/// A place in the file, and whether it is test code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) in_test: bool,
}

/// An inline module, `mod name { ... }`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) line: usize,
}

/// The facts about a file.
#[derive(Debug, Default)]
pub(crate) struct Syntax {
    pub(crate) functions: Vec<Function>,
    pub(crate) modules: Vec<Module>,
    /// `unsafe { ... }` and `unsafe impl`, where an obligation is discharged.
    pub(crate) unsafe_uses: Vec<Place>,
    /// Attributes that loosen the lint `unsafe_code`.
    pub(crate) unsafe_permits: Vec<Place>,
    /// Paths that start with `crate` or `super`, with the groups of a `use` expanded.
    pub(crate) paths: Vec<PathUse>,
    /// Imports of the file's own module, outside test code.
    pub(crate) imports: Vec<Vec<String>>,
    /// Lines of `let (a, b) = (x, y)`.
    pub(crate) packed_lets: Vec<usize>,
    /// Every identifier with its line, once for each line.
    pub(crate) identifiers: Vec<(usize, String)>,
}

/// A path to something elsewhere in the crate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PathUse {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) in_test: bool,
}

/// Where and why the text is not a sequence of Rust tokens.
#[derive(Debug)]
pub(crate) struct LexError {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Syntax {
    /// Reads the text of one Rust file.
    pub(crate) fn read(text: &str) -> Result<Self, LexError> {
        let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| LexError {
            line: error.span().start().line,
            message: error.to_string(),
        })?;
        let mut syntax = Self::default();
        syntax.walk(tokens, false);
        Ok(syntax)
    }

    fn walk(&mut self, tokens: TokenStream, mut in_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        in_test |= self.inner_attributes(&tokens, in_test);
        let mut item = Item::new(in_test);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at + 1..];
            self.paths_at(&tokens, at, item.in_test);
            if let Some((attribute, inner, length)) = attribute(&tokens[at..]) {
                if !inner {
                    item.attribute(attribute);
                }
                at += length;
                continue;
            }
            match token {
                TokenTree::Ident(word) => {
                    self.word(&word.to_string(), word.span().start().line, rest, &mut item)
                }
                TokenTree::Group(group) => self.group(group, &mut item, in_test),
                TokenTree::Punct(punct) if punct.as_char() == ';' => self.end_item(&mut item, in_test),
                _ => {}
            }
            at += 1;
        }
        self.end_item(&mut item, in_test);
    }

    /// Notes the attributes of the whole group of tokens; returns whether one makes it test code.
    fn inner_attributes(&mut self, mut tokens: &[TokenTree], in_test: bool) -> bool {
        let mut whole = Item::new(in_test);
        while let Some((attribute, _, length)) = attribute(tokens).filter(|(_, inner, _)| *inner) {
            whole.attribute(attribute);
            tokens = &tokens[length..];
        }
        let marked = whole.in_test;
        self.end_item(&mut whole, in_test);
        marked
    }

    fn word(&mut self, word: &str, line: usize, rest: &[TokenTree], item: &mut Item) {
        match (word, rest.first()) {
            ("fn", Some(TokenTree::Ident(name))) => item.function = Some((name.to_string(), line)),
            ("fn", Some(TokenTree::Punct(dollar))) if dollar.as_char() == '$' => {
                item.function = Some(("$".to_owned(), line));
            }
            ("mod", Some(TokenTree::Ident(name))) => item.module = Some((name.to_string(), line)),
            ("unsafe", Some(TokenTree::Group(block))) if block.delimiter() == Delimiter::Brace => {
                self.unsafe_uses.push(Place { line, in_test: item.in_test });
            }
            ("unsafe", Some(TokenTree::Ident(next))) if next == "impl" => {
                self.unsafe_uses.push(Place { line, in_test: item.in_test });
            }
            _ => {}
        }
    }

    /// Notes the path, import, packed `let` or identifier at a token.
    fn paths_at(&mut self, tokens: &[TokenTree], at: usize, in_test: bool) {
        let TokenTree::Ident(word) = &tokens[at] else { return };
        let line = word.span().start().line;
        let word = word.to_string();
        if self.identifiers.last() != Some(&(line, word.clone())) {
            self.identifiers.push((line, word.clone()));
        }
        match word.as_str() {
            "crate" | "super" if !is_punct(tokens, at.checked_sub(1), ':') => {
                let mut found = Vec::new();
                paths(&tokens[at..], &mut Vec::new(), &mut found);
                let whole = found.into_iter().filter(|segments| segments.len() > 1);
                self.paths.extend(whole.map(|segments| PathUse { segments, line, in_test }));
            }
            "use" if !in_test => paths(&tokens[at + 1..], &mut Vec::new(), &mut self.imports),
            "let" if is_packed(&tokens[at + 1..]) => self.packed_lets.push(line),
            _ => {}
        }
    }

    fn group(&mut self, group: &Group, item: &mut Item, in_test: bool) {
        self.walk(group.stream(), item.in_test);
        if group.delimiter() != Delimiter::Brace {
            return;
        }
        if let Some((name, line)) = item.function.take() {
            self.functions.push(Function { name, line, length: group.span_close().end().line + 1 - line });
        } else if let Some((name, line)) = item.module.take() {
            self.modules.push(Module { name, line });
        }
        self.end_item(item, in_test);
    }

    fn end_item(&mut self, item: &mut Item, in_test: bool) {
        let ended = std::mem::replace(item, Item::new(in_test));
        self.unsafe_permits.extend(ended.permits.iter().map(|&line| Place { line, in_test: ended.in_test }));
    }
}

/// The paths that start the tokens, after `before`: one per leaf where braces branch.
fn paths(tokens: &[TokenTree], before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let depth = before.len();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => before.push(word.to_string()),
            Some(TokenTree::Group(group))
                if group.delimiter() == Delimiter::Brace && before.len() > depth =>
            {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
                inner.split(is_comma).for_each(|branch| paths(branch, before, found));
                before.truncate(depth);
                return;
            }
            _ => break,
        }
        if !is_punct(tokens, Some(at + 1), ':') || !is_punct(tokens, Some(at + 2), ':') {
            break;
        }
        at += 3;
    }
    if before.len() > depth {
        found.push(before.clone());
    }
    before.truncate(depth);
}

fn is_punct(tokens: &[TokenTree], at: Option<usize>, wanted: char) -> bool {
    matches!(at.and_then(|at| tokens.get(at)), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Whether a `let` binds a tuple pattern to a tuple expression.
fn is_packed(rest: &[TokenTree]) -> bool {
    let parts = |token: Option<&TokenTree>| match token {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let names = inner.iter().all(|token| matches!(token, TokenTree::Ident(_) | TokenTree::Punct(_)));
            let commas =
                inner.iter().filter(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','));
            Some((names, commas.count()))
        }
        _ => None,
    };
    let bound = parts(rest.first()).is_some_and(|(names, commas)| names && commas > 0);
    let written_out = parts(rest.get(2)).is_some_and(|(_, commas)| commas > 0);
    bound && is_punct(rest, Some(1), '=') && written_out && is_punct(rest, Some(3), ';')
}

/// The state of the item being walked.
struct Item {
    in_test: bool,
    function: Option<(String, usize)>,
    module: Option<(String, usize)>,
    permits: Vec<usize>,
}

impl Item {
    fn new(in_test: bool) -> Self {
        Self { in_test, function: None, module: None, permits: Vec::new() }
    }

    fn attribute(&mut self, attribute: &Group) {
        let content = attribute.stream();
        self.in_test |= marks_test(&content);
        if permits_unsafe(content) {
            self.permits.push(attribute.span_open().start().line);
        }
    }
}

/// The attribute at the start of the tokens, whether it is an inner one (`#![]`), and its number of tokens.
fn attribute(tokens: &[TokenTree]) -> Option<(&Group, bool, usize)> {
    let is = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == wanted);
    if !is(0, '#') {
        return None;
    }
    let inner = is(1, '!');
    let at = 1 + usize::from(inner);
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
            Some((group, inner, at + 1))
        }
        _ => None,
    }
}

/// Whether an attribute makes its item test code: `#[test]`, or a `#[cfg]` with `test`.
fn marks_test(content: &TokenStream) -> bool {
    let mut tokens = content.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(word)), None) => word == "test",
        (Some(TokenTree::Ident(word)), Some(TokenTree::Group(condition))) if word == "cfg" => {
            asks_for_test(condition.stream())
        }
        _ => false,
    }
}

fn asks_for_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    (0..tokens.len()).any(|at| match &tokens[at] {
        TokenTree::Ident(word) => word == "test",
        TokenTree::Group(group) => !follows(&tokens, at, &["not"]) && asks_for_test(group.stream()),
        _ => false,
    })
}

fn permits_unsafe(content: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = content.into_iter().collect();
    (0..tokens.len()).any(|at| match &tokens[at] {
        TokenTree::Group(group) if follows(&tokens, at, &["allow", "expect", "warn"]) => group
            .stream()
            .into_iter()
            .any(|lint| matches!(lint, TokenTree::Ident(name) if name == "unsafe_code")),
        TokenTree::Group(group) => permits_unsafe(group.stream()),
        _ => false,
    })
}

fn follows(tokens: &[TokenTree], at: usize, words: &[&str]) -> bool {
    let before = at.checked_sub(1).and_then(|before| tokens.get(before));
    matches!(before, Some(TokenTree::Ident(word)) if words.iter().any(|wanted| word == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Syntax {
        Syntax::read(text).expect("lexes")
    }

    #[test]
    fn measures_functions_from_signature_to_closing_brace() {
        let syntax =
            read("/// Docs do not count.\n#[inline]\npub fn two_lines(\n    a: u8,\n) -> u8 {\n    a\n}\n");
        assert_eq!(syntax.functions, [Function { name: "two_lines".to_owned(), line: 3, length: 5 }]);
    }

    #[test]
    fn finds_functions_in_macro_calls_and_not_function_types_or_declarations() {
        let syntax = read(
            "proptest! { fn inside(x in 0..3) { } }\ntype F = fn(u8) -> u8;\ntrait T { fn declared(); }",
        );
        assert_eq!(syntax.functions.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["inside"]);
    }

    #[test]
    fn finds_uses_of_unsafe_in_blocks_impls_and_macros() {
        let syntax = read(
            "unsafe impl Send for A {}\nfn f() { unsafe { g() } }\nm! { unsafe { g() } }\nunsafe fn h() {}",
        );
        assert_eq!(syntax.unsafe_uses.iter().map(|place| place.line).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn sees_every_form_of_permission_and_not_a_denial() {
        let text = "#![allow(unsafe_code)]\n#[expect(dead_code, unsafe_code)]\nfn a() {}\n\
                    #[cfg_attr(loom, allow(unsafe_code))]\nfn b() {}\n#[deny(unsafe_code)]\nfn c() {}\n";
        let lines: Vec<usize> = read(text).unsafe_permits.iter().map(|place| place.line).collect();
        assert_eq!(lines, [1, 2, 4]);
    }

    #[test]
    fn knows_test_code_by_its_attributes_in_either_order() {
        let text = "#[allow(unsafe_code)]\n#[cfg(all(test, not(loom)))]\nmod tests { fn f() { unsafe { g() } } }\n\
                    #[cfg(not(test))]\n#[allow(unsafe_code)]\nmod live {}\n";
        let syntax = read(text);
        assert_eq!(syntax.unsafe_uses, [Place { line: 3, in_test: true }]);
        assert_eq!(
            syntax.unsafe_permits,
            [Place { line: 1, in_test: true }, Place { line: 5, in_test: false }]
        );
    }

    #[test]
    fn takes_paths_and_imports_apart() {
        let syntax = read(
            "use crate::a::{b::C, D};\nfn f() { super::g::h(); }\n#[cfg(test)]\nmod tests { use super::*; }\n",
        );
        let whole: Vec<String> = syntax.paths.iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(whole, ["crate::a::b::C", "crate::a::D", "super::g::h"]);
        assert_eq!(syntax.imports.len(), 2);
    }

    #[test]
    fn finds_tuples_bound_to_tuples() {
        let packed = "fn f() { let (a, mut b) = (1, g(2, 3)); }";
        let plain = "fn f() { let (a, b) = g(); let (c, d) = (1, 2).swap(); let e = (1, 2); }";
        assert_eq!((read(packed).packed_lets.len(), read(plain).packed_lets.len()), (1, 0));
    }

    #[test]
    fn inner_attributes_belong_to_the_whole_and_not_to_the_first_item() {
        let syntax = read("#![allow(unsafe_code)]\n#[cfg(test)]\nmod tests {}\n");
        assert_eq!(syntax.unsafe_permits, [Place { line: 1, in_test: false }]);
        let syntax = read("//! Docs.\n#![cfg(test)]\nfn a() { unsafe { g() } }\n");
        assert_eq!(syntax.unsafe_uses, [Place { line: 3, in_test: true }]);
    }

    #[test]
    fn forgets_the_test_attribute_after_its_item() {
        let syntax = read("#[test]\nfn a() {}\nfn b() { unsafe { g() } }");
        assert_eq!(syntax.unsafe_uses, [Place { line: 3, in_test: false }]);
    }

    #[test]
    fn reports_the_line_that_does_not_lex() {
        assert_eq!(Syntax::read("fn a() {}\nfn b( {}\n").expect_err("unbalanced").line, 2);
    }
}
