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

/// Two pages and their descriptor. They are no admitted frame, so they can be truncated.
fn pages() -> (OwnedFd, Mapping) {
    let page = rustix::param::page_size();
    let (descriptor, _) = frame::allocate(2 * page as u64, Default::default()).unwrap();
    let mapping = Mapping::shared(descriptor.as_fd(), 2 * page, Access::ReadWrite, page).unwrap();
    (descriptor, mapping)
}

fn register(service: &Service, session: SessionId, mapping: Mapping) -> Handle {
    match service.register_mapping(session, mapping, Rights::all()).unwrap() {
        Answer::Handle(handle) => handle,
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
    let (memory, mapping) = pages();
    let lost = register(&service, broken, mapping);
    let kept = register(&service, sound, pages().1);
    assert_eq!(fill(&service, broken, lost), Ok(()));
    rustix::fs::ftruncate(&memory, rustix::param::page_size() as u64).unwrap();
    assert_eq!(fill(&service, broken, lost), Err(Failure::MemoryFault));
    assert_eq!(service.process_events().closed, [(broken, Violation::MemoryFault)]);
    assert_eq!(fill(&service, sound, kept), Ok(()));
    assert_eq!(service.process_events().closed, []);
}

/// All frames of all sessions are searched with the table locked, so only a fault that a transfer met is worth it.
#[test]
fn frames_are_searched_only_after_a_fault() {
    let service = service();
    let owner = session(&service);
    let (memory, mapping) = pages();
    register(&service, owner, mapping.clone());
    let page = rustix::param::page_size() as u64;
    rustix::fs::ftruncate(&memory, page).unwrap();
    assert!(bus_error::guarded([&mapping], || mapping.write(page, &[1])).is_err());
    assert_eq!(service.process_events().closed, []);
    service.shared.notify(Notice::MemoryFault);
    assert_eq!(service.process_events().closed, [(owner, Violation::MemoryFault)]);
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
