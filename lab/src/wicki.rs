//! Experiments on Wicki's thesis (2014): a user-level driver of the OMAP4's system DMA.
//!
//! ```text
//! plans/wicki-*.toml ──► runners: driver on the SDMA's model, in virtual time ──► judges of the wicki-* claims
//! ```
//!
//! Figures 3 to 12 measure the device from the kernel (section 4.1).

mod ablation;
mod device_claims;
mod machine;
mod transfer;

use crate::experiments::Paper;

/// All of them.
pub const PAPER: Paper = Paper {
    plans: &[
        include_str!("../plans/wicki-fig-03.toml"),
        include_str!("../plans/wicki-fig-04.toml"),
        include_str!("../plans/wicki-fig-05.toml"),
        include_str!("../plans/wicki-fig-06.toml"),
        include_str!("../plans/wicki-fig-08.toml"),
        include_str!("../plans/wicki-fig-09.toml"),
        include_str!("../plans/wicki-fig-11.toml"),
        include_str!("../plans/wicki-simple.toml"),
    ],
    parameters: include_str!("../parameters/wicki.toml"),
    runners: &[transfer::ONE, transfer::SEVERAL],
    judges: &device_claims::JUDGES,
};
