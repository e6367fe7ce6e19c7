//! The engine on the fake driver: memory, jobs in all manners, faults, and other processes.
//!
//! `MEMFERRY_TEST_CUDA_LIBRARY=libcuda.so.1` has the modules jobs, random and vram tested on a real GPU, without their faults.

#[path = "on_the_fake/faults.rs"]
mod faults;
#[path = "on_the_fake/jobs.rs"]
mod jobs;
#[path = "on_the_fake/loading.rs"]
mod loading;
#[path = "on_the_fake/random.rs"]
mod random;
#[path = "on_the_fake/stage.rs"]
mod stage;
#[path = "on_the_fake/vram.rs"]
mod vram;
