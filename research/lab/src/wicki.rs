//! Experiments on Wicki's thesis (2014): a user-level driver of the OMAP4's system DMA.
//!
//! ```text
//! plans/wicki-*.toml ──► runners: driver on the SDMA's model, in virtual time ──► judges of the wicki-* claims
//! ```
//!
//! Figures 3 to 12 measure the device from the kernel (section 4.1), 13 to 16 through the user-level driver (4.2), 17 to 20
//! bulk transfers with and without it (4.3). Further experiments
//! measure the core time that is free during an offload, contention for memory, and energy.

pub mod bulk;
pub mod clients;
pub mod host;
pub mod service;
mod synchronized;

mod ablation;
mod beds;
mod beside;
mod busy;
mod channels;
mod contention;
mod crowd;
mod device_claims;
mod driver;
mod energy;
mod gather;
mod judge_bulk;
mod judge_driver;
mod machine;
mod offload;
mod safety;
mod transfer;

use bulk::Board;
use clients::DeviceTimes;
use host::Host;

use crate::paper::Paper;
use crate::parameters::{Parameters, ParametersError};

pub const PAPER: Paper = Paper {
    name: "wicki2014",
    title: "S. Wicki, 2014: \
            OS Support for Memory-to-Memory Transfers Using a DMA Engine (thesis, ETH Zurich)",
    plans: &[
        include_str!("../plans/wicki-fig-03.toml"),
        include_str!("../plans/wicki-fig-04.toml"),
        include_str!("../plans/wicki-fig-05.toml"),
        include_str!("../plans/wicki-fig-06.toml"),
        include_str!("../plans/wicki-fig-08.toml"),
        include_str!("../plans/wicki-fig-09.toml"),
        include_str!("../plans/wicki-fig-11.toml"),
        include_str!("../plans/wicki-simple.toml"),
        include_str!("../plans/wicki-fig-13.toml"),
        include_str!("../plans/wicki-fig-14.toml"),
        include_str!("../plans/wicki-fig-15.toml"),
        include_str!("../plans/wicki-fig-16.toml"),
        include_str!("../plans/wicki-driver-graphics.toml"),
        include_str!("../plans/wicki-linking.toml"),
        include_str!("../plans/wicki-priorities.toml"),
        include_str!("../plans/wicki-fig-17.toml"),
        include_str!("../plans/wicki-fig-18.toml"),
        include_str!("../plans/wicki-fig-19.toml"),
        include_str!("../plans/wicki-fig-20.toml"),
        include_str!("../plans/wicki-crossing.toml"),
        include_str!("../plans/wicki-maintenance.toml"),
        include_str!("../plans/wicki-overlap.toml"),
        include_str!("../plans/wicki-core-time.toml"),
        include_str!("../plans/wicki-fill-spikes.toml"),
        include_str!("../plans/wicki-contention.toml"),
        include_str!("../plans/wicki-together.toml"),
        include_str!("../plans/wicki-energy.toml"),
    ],
    parameters: include_str!("../parameters/wicki.toml"),
    runners: &[
        transfer::ONE,
        transfer::SEVERAL,
        channels::CHAINED,
        channels::PRIORITIES,
        driver::DRIVER,
        offload::BULK,
        offload::CROSSING,
        offload::OVERLAP,
        contention::CONTENTION,
        contention::TOGETHER,
        energy::ENERGY,
    ],
    judges: &[
        &device_claims::JUDGES,
        &channels::JUDGES,
        &judge_driver::JUDGES,
        &judge_bulk::JUDGES,
        &synchronized::JUDGES,
        &safety::JUDGES,
        &busy::JUDGES,
        &gather::JUDGES,
        &contention::JUDGES,
        &energy::JUDGES,
    ],
    fits: &[],
};

/// The board with the given parameters; `seed` is for pseudo-random replacement.
fn board(parameters: &Parameters, seed: u64) -> Result<Board, ParametersError> {
    let device = DeviceTimes {
        config: machine::device_config(parameters)?,
        memory: machine::memory_timing(parameters)?,
        fifo_depth: machine::fifo_depth(parameters)?,
    };
    Ok(Board { host: Host::new(parameters)?, device, seed })
}
