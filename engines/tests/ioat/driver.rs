//! The driver alone on the model.
