//! Reads the definitions of SMT-LIB files and evaluates them, so that tests compare with the shipped code what a solver proves about.
//!
//! ```text
//! smt/*.smt2 ─┬─► Formulas ─► value(function, operands) ─► equal to the shipped code's, for random and boundary operands
//!             └─► z3 ─► the theorems of the file: ./x test --full proof
//! ```
//!
//! It knows the operations that these files use, on integers of up to 128 bits, truth values and bit vectors. It reads no assertion. Files are
//! part of the tests, so a mistake in one panics.

use std::collections::BTreeMap;

/// What a term stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    Int(i128),
    Bool(bool),
    /// A bit vector: its value and its width.
    Bits(u128, u32),
}

impl Value {
    /// A bit vector of 32 bits.
    pub fn of32(value: u32) -> Self {
        Self::Bits(u128::from(value), 32)
    }

    /// A bit vector of 64 bits.
    pub fn of64(value: u64) -> Self {
        Self::Bits(u128::from(value), 64)
    }

    fn bits(value: u128, width: u32) -> Self {
        Self::Bits(value & mask(width), width)
    }

    fn is_true(self) -> bool {
        let Self::Bool(value) = self else { panic!("{self:?} is no truth value") };
        value
    }

    fn int(self) -> i128 {
        let Self::Int(value) = self else { panic!("{self:?} is no integer") };
        value
    }

    fn vector(self) -> (u128, u32) {
        let Self::Bits(value, width) = self else { panic!("{self:?} is no bit vector") };
        (value, width)
    }
}

fn mask(width: u32) -> u128 {
    assert!((1..128).contains(&width), "bit vectors have 1 to 127 bits");
    (1 << width) - 1
}

#[derive(Debug)]
enum Term {
    Atom(String),
    List(Vec<Term>),
}

impl Term {
    fn atom(&self) -> &str {
        let Self::Atom(atom) = self else { panic!("{self:?} is no name") };
        atom
    }

    fn list(&self) -> &[Self] {
        let Self::List(list) = self else { panic!("{self:?} is no list") };
        list
    }
}

struct Function {
    parameters: Vec<String>,
    body: Term,
}

/// The functions that a file defines.
pub struct Formulas {
    functions: BTreeMap<String, Function>,
}

type Bound<'a> = Vec<(&'a str, Value)>;

impl Formulas {
    /// The functions of a file's text.
    pub fn of(text: &str) -> Self {
        let mut functions = BTreeMap::new();
        for command in terms(text) {
            let Term::List(mut words) = command else { panic!("{command:?} is no command") };
            if words[0].atom() != "define-fun" {
                continue;
            }
            let body = words.pop().expect("a definition has a body");
            let parameters = words[2].list().iter().map(|one| one.list()[0].atom().to_owned()).collect();
            functions.insert(words[1].atom().to_owned(), Function { parameters, body });
        }
        Self { functions }
    }

    /// The value of a function.
    pub fn value(&self, name: &str, operands: &[Value]) -> Value {
        let function = self.functions.get(name).unwrap_or_else(|| panic!("the file does not define {name}"));
        assert_eq!(function.parameters.len(), operands.len(), "operands of {name}");
        let names = function.parameters.iter().map(String::as_str);
        self.term(&function.body, &names.zip(operands.iter().copied()).collect())
    }

    /// The truth of a function.
    pub fn holds(&self, name: &str, operands: &[Value]) -> bool {
        self.value(name, operands).is_true()
    }

    fn term<'a>(&self, term: &'a Term, bound: &Bound<'a>) -> Value {
        let words = match term {
            Term::Atom(atom) => return atom_value(atom, bound),
            Term::List(words) => words,
        };
        if let Term::List(indexed) = &words[0] {
            return extended(indexed, self.term(&words[1], bound));
        }
        let name = words[0].atom();
        match name {
            "_" => {
                let value = words[1].atom().strip_prefix("bv").and_then(|digits| digits.parse().ok());
                Value::bits(value.expect("a literal of bits"), number(&words[2]))
            }
            "ite" => {
                let branch = if self.term(&words[1], bound).is_true() { 2 } else { 3 };
                self.term(&words[branch], bound)
            }
            "let" => {
                let mut inner = bound.clone();
                for one in words[1].list() {
                    inner.push((one.list()[0].atom(), self.term(&one.list()[1], bound)));
                }
                self.term(&words[2], &inner)
            }
            _ => {
                let operands: Vec<Value> = words[1..].iter().map(|word| self.term(word, bound)).collect();
                if self.functions.contains_key(name) {
                    self.value(name, &operands)
                } else {
                    operation(name, &operands)
                }
            }
        }
    }
}

fn number(term: &Term) -> u32 {
    term.atom().parse().expect("a number")
}

fn atom_value(atom: &str, bound: &Bound<'_>) -> Value {
    if let Some((_, value)) = bound.iter().rev().find(|(name, _)| *name == atom) {
        return *value;
    }
    if let Some(digits) = atom.strip_prefix("#x") {
        return Value::bits(u128::from_str_radix(digits, 16).expect("hexadecimal"), 4 * digits.len() as u32);
    }
    match atom {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::Int(atom.parse().unwrap_or_else(|_| panic!("{atom} is not bound"))),
    }
}

/// `(_ extract 7 0)` and `(_ zero_extend 8)` of a bit vector.
fn extended(indexed: &[Term], operand: Value) -> Value {
    let (value, width) = operand.vector();
    match indexed[1].atom() {
        "extract" => {
            let high = number(&indexed[2]);
            let low = number(&indexed[3]);
            Value::bits(value >> low, high - low + 1)
        }
        "zero_extend" => Value::bits(value, width + number(&indexed[2])),
        other => panic!("{other} is not known"),
    }
}

fn operation(name: &str, operands: &[Value]) -> Value {
    match name {
        "and" => Value::Bool(operands.iter().all(|one| one.is_true())),
        "or" => Value::Bool(operands.iter().any(|one| one.is_true())),
        "not" => Value::Bool(!operands[0].is_true()),
        "=" => Value::Bool(operands[0] == operands[1]),
        "<=" => Value::Bool(operands.windows(2).all(|pair| pair[0].int() <= pair[1].int())),
        "<" => Value::Bool(operands.windows(2).all(|pair| pair[0].int() < pair[1].int())),
        "+" => Value::Int(operands.iter().map(|one| one.int()).sum()),
        "*" => Value::Int(operands.iter().map(|one| one.int()).product()),
        "-" if operands.len() == 1 => Value::Int(-operands[0].int()),
        "-" => Value::Int(operands[0].int() - operands[1].int()),
        _ => of_vectors(name, operands),
    }
}

fn of_vectors(name: &str, operands: &[Value]) -> Value {
    let (left, width) = operands[0].vector();
    let (right, other) = operands[1].vector();
    if name == "concat" {
        return Value::bits(left << other | right, width + other);
    }
    assert_eq!(width, other, "widths of {name}");
    let places = u32::try_from(right).unwrap_or(u32::MAX).min(width);
    match name {
        "bvadd" => Value::bits(left + right, width),
        "bvsub" => Value::bits(left.wrapping_sub(right), width),
        "bvand" => Value::bits(left & right, width),
        "bvor" => Value::bits(left | right, width),
        "bvshl" => Value::bits(left << places, width),
        "bvlshr" => Value::bits(left >> places, width),
        "bvule" => Value::Bool(left <= right),
        "bvult" => Value::Bool(left < right),
        other => panic!("{other} is not known"),
    }
}

/// The terms of a text, one after the other. Strings become names.
fn terms(text: &str) -> Vec<Term> {
    let mut open = vec![Vec::new()];
    for line in text.lines() {
        let code = line.split(';').next().unwrap_or(line);
        for (at, quoted) in code.split('"').enumerate() {
            if at % 2 == 1 {
                open.last_mut().expect("an open list").push(Term::Atom(quoted.to_owned()));
            } else {
                add_words(&mut open, quoted);
            }
        }
    }
    assert_eq!(open.len(), 1, "a list is not closed");
    open.pop().expect("the outermost list")
}

fn add_words(open: &mut Vec<Vec<Term>>, code: &str) {
    for word in code.replace('(', " ( ").replace(')', " ) ").split_whitespace() {
        let term = match word {
            "(" => {
                open.push(Vec::new());
                continue;
            }
            ")" => Term::List(open.pop().expect("a list")),
            _ => Term::Atom(word.to_owned()),
        };
        open.last_mut().expect("a list is closed once too often").push(term);
    }
}

#[cfg(test)]
mod tests;
