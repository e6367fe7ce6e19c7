//! Exports through all orders of events.

use super::*;

fn export(bed: &mut Bed, mapping: &Mapping) -> ExportRequest {
    bed.engines.export(CLIENT, mapping).unwrap()
}

fn event(request: &ExportRequest) -> (SessionId, FrameEvent) {
    (ENGINE, FrameEvent::Export { frame: request.frame })
}

pub(super) const EXPORTED: FrameResult =
    FrameResult::Exported { kind: crate::protocol::ExportKind::Memory, length: 4096 };

#[test]
fn an_export_is_delivered_and_reported() {
    let mut bed = Bed::with_memory();
    let (proposal, mapping) = bed.allocated(4096);
    for result in [EXPORTED, FrameResult::NotExported, FrameResult::Failed] {
        let request = export(&mut bed, &mapping);
        assert_eq!(request, ExportRequest { engine: ENGINE, frame: proposal.frame });
        assert_eq!(bed.engines.export_state(&request), ExportState::Queued);
        assert_eq!(bed.delivered(), [event(&request)]);
        assert_eq!(bed.engines.export_state(&request), ExportState::Delivered);
        bed.report(ENGINE, proposal.frame, result);
        assert_eq!(bed.engines.export_state(&request), ExportState::Over);
    }
    let state = bed.engines.states().next().unwrap();
    assert_eq!((state.frames, state.memory.1), (1, 4096), "the frame stays");
}

#[test]
fn a_report_of_something_else_is_refused() {
    for (is_other, result) in
        [(true, EXPORTED), (false, FrameResult::Unmapped), (false, FrameResult::Mapped { is_writable: true })]
    {
        let mut bed = Bed::with_memory();
        let (proposal, mapping) = bed.allocated(4096);
        let request = export(&mut bed, &mapping);
        bed.delivered();
        let frame = if is_other { Handle::new(9, 9) } else { proposal.frame };
        let refused = bed.engines.next(ENGINE, Some(FrameDone { frame, result }));
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Argument);
        assert_eq!(bed.engines.export_state(&request), ExportState::Over);
        // The frame is as before: what is released is still to be unmapped.
        bed.engines.release(&[mapping]);
        assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
    }
}

/// As the result of another event it counts as a failure.
#[test]
fn an_export_that_nobody_asked_for_is_no_allocation() {
    let mut bed = Bed::with_memory();
    let proposal = bed.allocate(4096).unwrap();
    bed.delivered();
    bed.report(ENGINE, proposal.frame, EXPORTED);
    assert!(matches!(bed.engines.allocated(&proposal, false), Some(Err(_))));
}

#[test]
fn only_the_users_of_the_configuration_get_descriptors() {
    let mut bed = Bed::with_memory();
    let (_, mapping) = bed.allocated(4096);
    let refused = bed.engines.export(CLIENT + 1, &mapping).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Argument);
    assert!(refused.message.contains("exports="), "{refused}");
    export(&mut bed, &mapping);
}

#[test]
fn a_frame_that_is_revoked_first_is_not_exported() {
    let mut bed = Bed::with_memory();
    let (proposal, mapping) = bed.allocated(4096);
    let request = export(&mut bed, &mapping);
    bed.engines.release(std::slice::from_ref(&mapping));
    assert_eq!(bed.engines.export_state(&request), ExportState::Over);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
    assert_eq!(bed.engines.export(CLIENT, &mapping).unwrap_err().kind, RefusalKind::System);
    // While the engine exports it, the release comes behind.
    let mut bed = Bed::with_memory();
    let (proposal, mapping) = bed.allocated(4096);
    let request = export(&mut bed, &mapping);
    bed.delivered();
    bed.engines.release(&[mapping]);
    assert_eq!(bed.engines.export_state(&request), ExportState::Delivered);
    bed.report(ENGINE, proposal.frame, EXPORTED);
    assert_eq!(bed.delivered(), [(ENGINE, FrameEvent::Unmap { frame: proposal.frame })]);
}

#[test]
fn the_end_of_the_engine_ends_its_exports() {
    for is_delivered in [false, true] {
        let mut bed = Bed::with_memory();
        let (_, mapping) = bed.allocated(4096);
        let request = export(&mut bed, &mapping);
        if is_delivered {
            bed.delivered();
        }
        bed.engines.session_ended(ENGINE, bed.now);
        assert_eq!(bed.engines.export_state(&request), ExportState::Over);
        assert_eq!(bed.engines.export(CLIENT, &mapping).unwrap_err().kind, RefusalKind::System);
        bed.engines.give_up_export(&request);
        bed.engines.process_exited(ENGINE);
        assert_eq!(bed.engines.export_state(&request), ExportState::Over);
        bed.engines.give_up_export(&request);
    }
}

#[test]
fn a_late_engine_is_not_asked_again_until_it_answers() {
    let mut bed = Bed::with_memory();
    let (proposal, mapping) = bed.allocated(4096);
    let request = export(&mut bed, &mapping);
    bed.delivered();
    bed.engines.give_up_export(&request);
    let refused = bed.engines.export(CLIENT, &mapping).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::System);
    assert!(refused.message.contains("is busy"), "{refused}");
    bed.report(ENGINE, proposal.frame, EXPORTED);
    let request = export(&mut bed, &mapping);
    // One that it has not taken does not reach it.
    bed.engines.give_up_export(&request);
    assert_eq!(bed.engines.export_state(&request), ExportState::Over);
    assert!(bed.delivered().is_empty());
}

#[test]
fn exports_that_wait_are_limited() {
    let mut bed = Bed::with_memory();
    let (_, mapping) = bed.allocated(4096);
    let first = export(&mut bed, &mapping);
    assert_eq!(bed.delivered(), [event(&first)]);
    for _ in 0..16 {
        export(&mut bed, &mapping);
    }
    assert!(bed.engines.export(CLIENT, &mapping).unwrap_err().message.contains("is busy"));
    // Memory of clients, and memory that no engine knows.
    let proposal = bed.propose();
    let (mapping, _) = bed.register(proposal);
    for other in [mapping, Mapping::owned(vec![0; 9])] {
        assert_eq!(bed.engines.export(CLIENT, &other).unwrap_err().kind, RefusalKind::System);
    }
}
