//! What every command uses: folders, set-up, stages, and the list of what was left out.

use std::cell::RefCell;

use crate::place::Place;
use crate::setup::Setup;
use crate::stages::Stages;

pub(crate) struct Work<'a> {
    pub(crate) place: &'a Place,
    pub(crate) setup: Setup<'a>,
    pub(crate) stages: Stages,
    left_out: RefCell<Vec<String>>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self {
            place,
            setup: Setup::new(place),
            stages: Stages::of_environment(),
            left_out: RefCell::default(),
        }
    }

    /// Notes something that the command left out, for its last line.
    pub(crate) fn leave_out(&self, what: impl Into<String>) {
        self.left_out.borrow_mut().push(what.into());
    }

    /// What was left out, as the end of a sentence.
    pub(crate) fn left_out(&self) -> String {
        self.left_out.borrow().iter().map(|what| format!("; {what}")).collect()
    }
}
