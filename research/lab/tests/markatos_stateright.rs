//! Compares the lab's exploration with the model checker stateright: equal numbers of states, equal verdicts.
//!
//! ```text
//! protocol in a scene ──┬─► explore: states, breaches
//!                       └─► stateright, the same machine as its model: unique states, discoveries
//! ```
//!
//! The lab has its own exploration because it must find the cycles in which a process is rejected forever, which stateright's
//! liveness check ignores, and because stateright compares 64-bit fingerprints instead of whole states.

use memferry_lab::markatos::explore::{Bounds, explore};
use memferry_lab::markatos::machine::{Held, Protocol};
use memferry_lab::markatos::protocols::{
    enqcmd::Enqcmd, extended::Extended, flash::Flash, kernel::Kernel, keys::Keys, pal::Pal, repeated3::THREE,
    repeated4::FOUR, repeated5::FIGURE_10, shrimp1::Shrimp1, shrimp2::Shrimp2,
};
use memferry_lab::markatos::scenes::{self, on_two_cpus};
use memferry_lab::markatos::world::{Machine, Move, Scene, State};
use stateright::{Checker, Model, Property};

/// A machine as stateright's model. A breach is a state of its own without successors.
struct Theirs<'a, P: Protocol>(Machine<'a, P>);

impl<P: Protocol> Model for Theirs<'_, P> {
    type State = Option<State<P::Engine>>;
    type Action = Move;

    fn init_states(&self) -> Vec<Self::State> {
        vec![Some(self.0.reset())]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Move>) {
        actions.extend(state.iter().flat_map(|state| self.0.moves(state)));
    }

    fn next_state(&self, state: &Self::State, chosen: Move) -> Option<Self::State> {
        let (after, happening) = self.0.apply(state.as_ref()?, chosen);
        Some(happening.breach.is_none().then_some(after))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // The second property never holds, so that the checker visits all states.
        vec![
            Property::always("nothing breaks", |_, state: &Self::State| state.is_some()),
            Property::sometimes("goes on", |_, _| false),
        ]
    }
}

/// The checker needs a model that its threads can share and that lives as long as they do.
fn agree<P: Protocol + Sync + Send + 'static>(protocol: P, scene: Scene)
where
    P::Engine: Send + Sync,
{
    let name = scene.name;
    let protocol: &'static P = Box::leak(Box::new(protocol));
    let scene: &'static Scene = Box::leak(Box::new(scene));
    let ours = explore(&Machine::new(protocol, scene), Bounds::ALL);
    let theirs = Theirs(Machine::new(protocol, scene)).checker().threads(1).spawn_bfs().join();
    let broken = theirs.discovery("nothing breaks").is_some();
    assert_eq!(broken, !ours.breaches.is_empty(), "{name}");
    assert_eq!(theirs.unique_state_count(), ours.states + usize::from(broken), "{name}");
}

#[test]
fn stateright_finds_the_same() {
    for scene in [
        scenes::two_honest(),
        scenes::readable_source(),
        scenes::shared_destination(),
        scenes::three_honest(),
        scenes::buffered_attacked(),
    ] {
        for scene in [scene.clone(), on_two_cpus(scene)] {
            agree(Kernel { held: Held::Lock, checks_size: true }, scene.clone());
            agree(Shrimp1 { atomic: true }, scene.clone());
            agree(Shrimp2 { invalidates: true }, scene.clone());
            agree(Flash { hook: true }, scene.clone());
            agree(Pal { masked: true }, scene.clone());
            agree(Extended { contexts: true, ids: true }, scene.clone());
            agree(Extended { contexts: false, ids: true }, scene.clone());
            agree(THREE, scene.clone());
            agree(FOUR, scene.clone());
            agree(FIGURE_10, scene.clone());
            agree(Enqcmd { trusted: true }, scene.clone());
        }
    }
    agree(Keys { compares: true, guessed: false }, scenes::attacked());
}
