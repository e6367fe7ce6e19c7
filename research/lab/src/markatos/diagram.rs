//! Figure 8: the state diagram of the prototype, drawn from its transition function.
//!
//! ```text
//! transition(state, load?, equal?) for every combination ──► arcs ──► SVG text
//! ```
//!
//! The drawing has no information of its own: the label of an arc lists its accesses and their answers.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write as _;

use super::state_machine::{At, FAIL, transition};

const SIZE: f64 = 720.0;
const CIRCLE: f64 = 250.0;
const STATE: f64 = 34.0;
/// A white outline that keeps a label readable on its arc.
const HALO: &str = "stroke=\"white\" stroke-width=\"5\" paint-order=\"stroke\"";

/// The labels of the arcs between two states.
pub fn arcs() -> BTreeMap<(At, At), Vec<String>> {
    let mut arcs: BTreeMap<(At, At), Vec<String>> = BTreeMap::new();
    for at in At::ALL {
        for is_load in [false, true] {
            let [other, equal] = [false, true].map(|equal| transition(at, is_load, equal));
            let name = if is_load { "load" } else { "store" };
            let answer = |status| if is_load { format!("/{status:03X}h") } else { String::new() };
            if other == equal {
                arcs.entry((at, other.to)).or_default().push(format!("{name}{}", answer(other.status)));
            } else {
                let same = format!("{name}, equal{}", answer(equal.status));
                let starts = if equal.starts { ", DMA starts" } else { "" };
                arcs.entry((at, equal.to)).or_default().push(same + starts);
                arcs.entry((at, other.to)).or_default().push(format!("{name}, other{}", answer(FAIL)));
            }
        }
    }
    arcs
}

/// The position of a state on the circle, S0 at the top.
fn place(at: At) -> (f64, f64) {
    let turn = TAU * (at as u8 as f64) / 5.0 - TAU / 4.0;
    (SIZE / 2.0 + CIRCLE * turn.cos(), SIZE / 2.0 + CIRCLE * turn.sin() + 10.0)
}

/// The diagram as SVG text.
pub fn svg() -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{SIZE}\" height=\"{SIZE}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<defs><marker id=\"tip\" \
         markerWidth=\"9\" markerHeight=\"9\" refX=\"8\" refY=\"4\" orient=\"auto\"><path d=\"M0,0 L9,4 L0,8 z\"/>\
         </marker></defs>\n<text x=\"16\" y=\"24\" font-size=\"15\">State machine of repeated passing (TR 182, \
         figure 8), drawn from the model</text>\n"
    );
    for ((from, to), labels) in arcs() {
        let _ = writeln!(text, "{}", arc(from, to, &labels));
    }
    for at in At::ALL {
        let (x, y) = place(at);
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{STATE}\" fill=\"#dce9f5\" stroke=\"black\"/><text x=\"{x:.1}\" \
             y=\"{:.1}\" font-size=\"17\" text-anchor=\"middle\">{at:?}</text>",
            y + 6.0
        );
    }
    text + "</svg>\n"
}

/// One arc with its labels, bent so that arcs in opposite directions do not overlap.
fn arc(from: At, to: At, labels: &[String]) -> String {
    let ((x0, y0), (x1, y1)) = (place(from), place(to));
    if from == to {
        let label = labels.join("; ");
        return format!(
            "<path d=\"M{:.1},{:.1} c-40,-60 60,-60 24,-4\" fill=\"none\" stroke=\"black\" \
             marker-end=\"url(#tip)\"/><text x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            x0 - 14.0,
            y0 - STATE + 2.0,
            x0 + 34.0,
            y0 - STATE - 14.0
        );
    }
    let dx = x1 - x0;
    let dy = y1 - y0;
    let length = dx.hypot(dy);
    let ux = dx / length;
    let uy = dy / length;
    let bend = 40.0;
    let mx = (x0 + x1) / 2.0 - uy * bend;
    let my = (y0 + y1) / 2.0 + ux * bend;
    let sx = x0 + ux * STATE - uy * 8.0;
    let sy = y0 + uy * STATE + ux * 8.0;
    let ex = x1 - ux * STATE - uy * 8.0;
    let ey = y1 - uy * STATE + ux * 8.0;
    let mut text = format!(
        "<path d=\"M{sx:.1},{sy:.1} Q{mx:.1},{my:.1} {ex:.1},{ey:.1}\" fill=\"none\" stroke=\"black\" \
         marker-end=\"url(#tip)\"/>"
    );
    for (line, label) in labels.iter().enumerate() {
        let y = (my + (y0 + y1) / 2.0) / 2.0 + 14.0 * line as f64;
        let x = (mx + (x0 + x1) / 2.0) / 2.0;
        let _ = write!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" {HALO}>{label}</text>");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_diagram_has_all_states_and_answers() {
        let arcs = arcs();
        let way = [(At::S0, At::S1), (At::S1, At::S2), (At::S2, At::S3), (At::S3, At::S4), (At::S4, At::S0)];
        assert!(way.iter().all(|arc| arcs.contains_key(arc)));
        let text = svg();
        for word in ["S0", "S4", "/001h", "/002h", "/003h, DMA starts", "/000h", "load, equal", "</svg>"] {
            assert!(text.contains(word), "{word} is missing");
        }
    }
}
