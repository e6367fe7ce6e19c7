//! Simulations that several figures share: each runs once.
//!
//! ```text
//! what is simulated, values of all parameters ──digest──► known? ──► its result
//!                                                  └ no ──► simulate; others that ask meanwhile wait
//! ```
//!
//! A result is kept with the names of the parameters that it asked for, so a run that finds it depends on them too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};

use crate::parameters::Parameters;

/// Results that are remembered at most; then all are forgotten. A whole run has fewer.
const MOST: usize = 8192;

type Slot<V> = Arc<OnceLock<(V, BTreeSet<String>)>>;

/// The results of one kind of simulation.
pub(crate) struct Once<V>(Mutex<BTreeMap<[u8; 32], Slot<V>>>);

impl<V: Clone> Once<V> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The result of `simulate` for `what`, a text that says all but the parameters that it depends on.
    pub(crate) fn get(
        &self,
        what: &str,
        parameters: &Parameters,
        simulate: impl FnOnce(&Parameters) -> V,
    ) -> V {
        let slot = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST {
                known.clear();
            }
            Arc::clone(known.entry(digest(what, parameters)).or_default())
        };
        let (result, asked) = slot.get_or_init(|| {
            let watched = parameters.watched();
            let result = simulate(&watched);
            (result, watched.asked())
        });
        parameters.ask(asked);
        result.clone()
    }
}

fn digest(what: &str, parameters: &Parameters) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update((what.len() as u64).to_le_bytes());
    digest.update(what.as_bytes());
    for parameter in parameters.list() {
        digest.update((parameter.name.len() as u64).to_le_bytes());
        digest.update(parameter.name.as_bytes());
        digest.update(parameter.value.to_bits().to_le_bytes());
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn parameters() -> Parameters {
        let entry = |name| {
            format!("[[parameter]]\nname = '{name}'\nvalue = 1\nunit = 'ns'\nsource = 's'\nmechanism = 'm'\n")
        };
        Parameters::parse(&["speed", "weight"].map(entry).concat()).expect("well formed")
    }

    #[test]
    fn what_is_known_does_not_run_again_but_is_asked_for() {
        let once = Once::new();
        let runs = Cell::new(0);
        let get = |what: &str, parameters: &Parameters| {
            once.get(what, parameters, |parameters| {
                runs.set(runs.get() + 1);
                parameters.get("speed")
            })
        };
        let list = parameters();
        let expected = BTreeSet::from(["speed".to_owned()]);
        for _ in 0..2 {
            let own = list.watched();
            assert_eq!(get("a", &own), Ok(1.0));
            assert_eq!((own.asked(), runs.get()), (expected.clone(), 1));
        }
        assert_eq!(get("b", &list), Ok(1.0));
        assert_eq!(runs.get(), 2, "something else");
        assert_eq!(get("a", &list.with("speed", 2.0).expect("listed")), Ok(2.0));
        assert_eq!(get("a", &list.with("weight", 2.0).expect("listed")), Ok(1.0));
        assert_eq!(runs.get(), 4, "on other machines");
    }
}
