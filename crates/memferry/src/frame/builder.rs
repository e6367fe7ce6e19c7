//! The builder that allocates frames.

use std::sync::Arc;

use memferry_service::protocol::Command;
use memferry_shm::frame::{self, Pages};
use memferry_shm::placement::Placement;
use memferry_transfer::Rights;

use super::Frame;
use crate::error::FrameError;
use crate::session::{Session, expect_handle};

/// Describes a new frame; made by [`Client::frame`](crate::Client::frame). [`alloc`](Self::alloc) allocates it.
///
/// ```
/// use memferry::Client;
///
/// let client = Client::embedded()?;
/// let near = client.frame(1 << 20).node(0).alloc()?;
/// assert_eq!(near.length(), 1 << 20);
/// let refused = client.frame(1 << 20).node(1023).alloc().unwrap_err();
/// assert!(refused.to_string().contains("no memory node 1023"));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is allocated before `alloc`"]
pub struct FrameBuilder {
    session: Arc<Session>,
    length: u64,
    placement: Placement,
    home: Option<String>,
}

impl FrameBuilder {
    pub(crate) fn new(session: Arc<Session>, length: u64) -> Self {
        Self { session, length, placement: Placement::default(), home: None }
    }

    /// Takes huge pages of the machine's default huge page size, from the system's pool.
    pub fn huge(mut self) -> Self {
        self.placement.pages = Pages::Huge;
        self
    }

    /// Places the memory on NUMA node `node`, counted from 0.
    pub fn node(mut self, node: u32) -> Self {
        self.placement.node = Some(node);
        self
    }

    /// Takes memory that only the engine process of this name reaches, such as memory of a GPU. The frame is not mapped here:
    /// transfers by that engine reach it, together with host memory that the engine has. It is lost when the engine's process ends: the
    /// frame and all grants of it are revoked then. Pages and node of the host do not matter.
    ///
    /// ```no_run
    /// use memferry::{Client, copy};
    ///
    /// let client = Client::connect("/run/memferry/memferry.sock")?;
    /// let near = client.frame(1 << 20).alloc()?;
    /// let far = client.frame(1 << 20).home("cuda-0").alloc()?;
    /// client.queue(4)?.run(copy(&near, &far))?;
    /// # Ok::<(), memferry::Error>(())
    /// ```
    pub fn home(mut self, engine: &str) -> Self {
        self.home = Some(engine.to_owned());
        self
    }

    /// Allocates and registers the frame: zeroed, with all rights, its length rounded up to whole pages unless it has a
    /// [home](Self::home).
    ///
    /// # Errors
    /// [`FrameError::Allocate`], which lists the machine's nodes if the requested node does not exist; [`FrameError::Call`], with a
    /// refusal if the home is not there or has not enough memory.
    pub fn alloc(self) -> Result<Frame, FrameError> {
        if let Some(home) = self.home {
            let command = Command::Allocate { home, length: self.length };
            let handle = expect_handle(self.session.call(command, Vec::new())?.0)?;
            return Ok(Frame::new(self.session, handle, self.length, Rights::all(), None));
        }
        let (descriptor, mapping) = frame::allocate_placed(self.length, self.placement)?;
        let length = mapping.length_bytes() as u64;
        Frame::register(&self.session, descriptor, length, Rights::all(), Some(mapping))
    }
}

impl std::fmt::Debug for FrameBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameBuilder({} bytes, {:?})", self.length, self.placement)
    }
}
