//! Tests of the rule, one term at a time.

use memferry_transfer::{Count2d, Fill2d, Handle, Pattern, PixelSize, Plane};

use super::*;

const NOW: Instant = Instant::from_nanoseconds(10);
const LATER: Instant = Instant::from_nanoseconds(11);

/// A queue of the normal class without earlier requests.
const FREE: Immediate = Immediate {
    longest_bytes: 8,
    except: Operations::empty(),
    class: PriorityClass::Normal,
    fence_waits: false,
    now: Some(NOW),
};

fn destination() -> Span {
    Span::new(Handle::new(0, 1), 0)
}

fn fill(length: u64) -> Operation<Span> {
    Operation::Fill { destination: destination(), length, pattern: Pattern::Byte(1) }
}

#[test]
fn plain_terms_need_a_free_queue() {
    assert!(FREE.allows(&fill(8), &Terms::PLAIN));
    assert!(!FREE.allows(&fill(9), &Terms::PLAIN));
    assert!(Immediate { fence_waits: true, ..FREE }.allows(&fill(8), &Terms::PLAIN));
    assert!(Immediate::OWN_THREAD.allows(&fill(u64::MAX), &Terms::PLAIN));
}

#[test]
fn links_never_run_at_once() {
    let linked = Terms { linked: true, ..Terms::PLAIN };
    assert!(!FREE.allows(&fill(1), &linked));
    assert!(!Immediate::OWN_THREAD.allows(&fill(1), &linked));
}

#[test]
fn fences_wait_for_earlier_requests() {
    let fenced = Terms { fenced: true, ..Terms::PLAIN };
    assert!(FREE.allows(&fill(1), &fenced));
    assert!(!Immediate { fence_waits: true, ..FREE }.allows(&fill(1), &fenced));
    assert!(!Immediate::OWN_THREAD.allows(&fill(1), &fenced));
}

#[test]
fn deadlines_need_a_clock_and_time_left() {
    let until = |deadline| Terms { deadline: Some(deadline), ..Terms::PLAIN };
    assert!(FREE.allows(&fill(1), &until(LATER)));
    assert!(!FREE.allows(&fill(1), &until(NOW)));
    assert!(!Immediate { now: None, ..FREE }.allows(&fill(1), &until(LATER)));
    assert!(!Immediate::OWN_THREAD.allows(&fill(1), &until(LATER)));
}

#[test]
fn an_ungranted_class_is_not_served() {
    let high = Terms { class: PriorityClass::High, ..Terms::PLAIN };
    assert!(!FREE.allows(&fill(1), &high));
    assert!(Immediate { class: PriorityClass::High, ..FREE }.allows(&fill(1), &high));
    assert!(Immediate::OWN_THREAD.allows(&fill(1), &high));
}

#[test]
fn excepted_kinds_are_not_done() {
    let except = Operations::NOP | Operations::FILL_2D;
    let rule = Immediate { except, ..FREE };
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1, y_count: 1 };
    let color = memferry_transfer::Color24::new(1).unwrap();
    let shape = Fill2d { count, destination: Plane::contiguous(0, PixelSize::Bits8), color };
    let pixels = Operation::Fill2d { destination: destination(), shape };
    assert!(!rule.allows(&Operation::Nop, &Terms::PLAIN));
    assert!(!rule.allows(&pixels, &Terms::PLAIN));
    assert!(rule.allows(&fill(1), &Terms::PLAIN));
    assert!(FREE.allows(&pixels, &Terms::PLAIN));
}
