; Ranges of capabilities: narrowed, operand and overlap_in_part of crates/path/src/capability.rs, Region::new of crates/transfer/src/engine.rs.
; tests/ranges.rs compares the definitions with that code. The theorems say by 65 bits what must not overflow in 64.
(set-logic QF_BV)
(define-fun is-inside ((offset (_ BitVec 64)) (length (_ BitVec 64)) (available (_ BitVec 64))) Bool
  (and (bvule offset (bvadd offset length)) (bvule (bvadd offset length) available)))
(define-fun place ((outer (_ BitVec 64)) (offset (_ BitVec 64))) (_ BitVec 64) (bvadd outer offset))
(define-fun overlap-in-part ((one (_ BitVec 64)) (other (_ BitVec 64)) (length (_ BitVec 64))) Bool
  (and (not (= one other)) (bvult (ite (bvule one other) (bvsub other one) (bvsub one other)) length)))

(define-fun wide ((value (_ BitVec 64))) (_ BitVec 65) ((_ zero_extend 1) value))
(define-fun true-end ((offset (_ BitVec 64)) (length (_ BitVec 64))) (_ BitVec 65) (bvadd (wide offset) (wide length)))

(declare-const memory (_ BitVec 64))
(declare-const outer (_ BitVec 64))
(declare-const outer-length (_ BitVec 64))
(declare-const offset (_ BitVec 64))
(declare-const length (_ BitVec 64))
(declare-const byte (_ BitVec 64))

(echo "unsat: the check is that the last byte, without overflow, lies in the range")
(push 1)
(assert (not (= (is-inside offset length memory) (bvule (true-end offset length) (wide memory)))))
(check-sat)
(pop 1)

(echo "unsat: what is inside of a capability is inside of all above it, and of the memory, and its place does not overflow")
(push 1)
(assert (is-inside outer outer-length memory))
(assert (is-inside offset length outer-length))
(assert (not (and (= (wide (place outer offset)) (bvadd (wide outer) (wide offset)))
                  (bvule outer (place outer offset))
                  (bvule (true-end (place outer offset) length) (true-end outer outer-length))
                  (is-inside (place outer offset) length memory))))
(check-sat)
(pop 1)

(echo "sat: without the check for overflow a range would leave its capability")
(push 1)
(assert (bvule (bvadd offset length) memory))
(assert (not (bvule (true-end offset length) (wide memory))))
(check-sat)
(pop 1)

(echo "unsat: two ranges overlap in part exactly if they share a byte and do not start together")
(push 1)
(declare-const one (_ BitVec 64))
(declare-const other (_ BitVec 64))
(assert (is-inside one length memory))
(assert (is-inside other length memory))
(define-fun has ((start (_ BitVec 64)) (at (_ BitVec 64))) Bool
  (and (bvule start at) (bvult (wide at) (true-end start length))))
; A shared byte is a witness; without overlap there is none. With overlap the later start is one.
(define-fun later () (_ BitVec 64) (ite (bvule one other) other one))
(assert (not (and (=> (overlap-in-part one other length) (and (has one later) (has other later) (not (= one other))))
                  (=> (and (has one byte) (has other byte) (not (= one other))) (overlap-in-part one other length)))))
(check-sat)
(pop 1)

(echo "sat: ranges that only touch share no byte")
(push 1)
(assert (and (= outer #x0000000000000010) (= offset #x0000000000000020) (= length #x0000000000000010)))
(assert (not (overlap-in-part outer offset length)))
(check-sat)
(pop 1)
