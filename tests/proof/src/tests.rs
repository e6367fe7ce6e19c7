//! The evaluator against values worked out by hand.

use super::*;

const FILE: &str = r#"
; A comment (with a bracket.
(set-logic ALL)
(define-fun twice ((a Int)) Int (+ a a))
(define-fun most ((a Int) (b Int)) Int (ite (<= a b) b a))
(define-fun mixed ((a Int)) Int (let ((b (twice a)) (c 3)) (- (* b c) (- 1))))
(define-fun byte ((a (_ BitVec 64))) (_ BitVec 8) ((_ extract 15 8) a))
(define-fun wide ((a (_ BitVec 8))) (_ BitVec 16) (bvadd ((_ zero_extend 8) a) #x00ff))
(define-fun shifted ((a (_ BitVec 8))) (_ BitVec 8) (bvshl a (_ bv7 8)))
(define-fun joined ((a (_ BitVec 8)) (b (_ BitVec 8))) (_ BitVec 16) (concat a b))
(define-fun before ((a (_ BitVec 8)) (b (_ BitVec 8))) Bool (and (bvult a b) (not (= a b))))
(echo "unsat: a string (with a bracket")
(assert (and false
    true))
"#;

fn byte(value: u8) -> Value {
    Value::Bits(u128::from(value), 8)
}

#[test]
fn integers_follow_the_definitions() {
    let formulas = Formulas::of(FILE);
    assert_eq!(formulas.value("mixed", &[Value::Int(-5)]), Value::Int(-29));
    assert_eq!(formulas.value("most", &[Value::Int(-5), Value::Int(2)]), Value::Int(2));
}

#[test]
fn vectors_keep_their_widths() {
    let formulas = Formulas::of(FILE);
    assert_eq!(formulas.value("byte", &[Value::of64(0x1234_5678)]), byte(0x56));
    assert_eq!(formulas.value("wide", &[byte(2)]), Value::Bits(0x101, 16));
    assert_eq!(formulas.value("shifted", &[byte(3)]), byte(0x80));
    assert_eq!(formulas.value("joined", &[byte(1), byte(2)]), Value::Bits(0x102, 16));
    assert!(formulas.holds("before", &[byte(1), byte(2)]) && !formulas.holds("before", &[byte(2), byte(2)]));
}

#[test]
#[should_panic(expected = "the file does not define thrice")]
fn an_unknown_function_panics() {
    Formulas::of(FILE).value("thrice", &[]);
}

#[test]
#[should_panic(expected = "a list is not closed")]
fn an_open_list_panics() {
    Formulas::of("(define-fun a () Int (+ 1 2)");
}
