//! Tests of the control side without a client: commands and transfers of a session on the test's own thread.

use memferry_transfer::Pattern;

use super::*;
use crate::config::{ConfigError, EngineConfig};

fn service() -> Service {
    Service::start(ServiceConfig { workers: 1, ..ServiceConfig::default() }, Clients::Here).unwrap()
}

fn session(service: &Service) -> SessionId {
    service.connect(Introduced { user: 0, process: 0, asymmetric_fences: false }).unwrap()
}

/// Registers two pages, and returns them with their descriptor. They are no admitted frame, so they can be truncated.
fn register(service: &Service, session: SessionId) -> (OwnedFd, Handle) {
    let page = rustix::param::page_size();
    let (descriptor, _) = frame::allocate(2 * page as u64, Default::default()).unwrap();
    let mapping = Mapping::shared(descriptor.as_fd(), 2 * page, Access::ReadWrite, page).unwrap();
    match service.register_mapping(session, mapping, Rights::all()).unwrap() {
        Answer::Handle(handle) => (descriptor, handle),
        other => panic!("{other:?}"),
    }
}

/// Fills the second page.
fn fill(service: &Service, session: SessionId, handle: Handle) -> Result<(), Failure> {
    let page = rustix::param::page_size() as u64;
    let destination = Span::new(handle, page);
    let operation = Operation::Fill { destination, length: page, pattern: Pattern::Byte(1) };
    service.perform(session, &operation, &Terms::default()).unwrap().result
}

#[test]
fn a_session_whose_memory_fails_is_closed_alone() {
    let service = service();
    let [broken, sound] = [session(&service), session(&service)];
    let (memory, lost) = register(&service, broken);
    let (_memory, kept) = register(&service, sound);
    assert_eq!(fill(&service, broken, lost), Ok(()));
    rustix::fs::ftruncate(&memory, rustix::param::page_size() as u64).unwrap();
    assert_eq!(fill(&service, broken, lost), Err(Failure::MemoryFault));
    assert_eq!(service.process_events().closed, [(broken, Violation::MemoryFault)]);
    assert_eq!(fill(&service, sound, kept), Ok(()));
    assert_eq!(service.process_events().closed, []);
}

#[test]
fn a_client_without_membarrier_gets_full_fences() {
    let service = service();
    assert_eq!(service.fences_with(false), Fences::Full);
    assert_eq!(service.fences_with(true), service.fences());
}

#[test]
fn two_engines_of_one_name_are_refused() {
    let check = |names: &[&str]| {
        let engines = names.iter().map(|name| EngineConfig::new(name, 0)).collect();
        ServiceConfig { engines, ..ServiceConfig::default() }.check()
    };
    assert_eq!(check(&["one", "two"]), Ok(()));
    assert_eq!(check(&["one", "two", "one"]), Err(ConfigError::EngineTwice("one".to_owned())));
}
