//! One node's links: messages of all connections, the requests that use them, and the memory that is served over them.
//!
//! ```text
//! jobs ─► accept ─► Request ─ attach? ─► advance ─► accesses ─┐
//! Owner ─► answers ───────────────────────────────────────────┴─► send: encrypted connection, or UCX
//! jobs that bring memory of this node ─► use_in_place ─► copied into the answer, or written
//! events, UCX ─► handle: the peer's messages                 tick: pings, peers that are silent
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memferry::{NodeName, PeerReason};
use memferry_engine::{Engine, Failure, Job};

use crate::backlog::Backlog;
use crate::channels::Channels;
use crate::config::{Config, connects};
use crate::connections::{Event, Up};
use crate::direct::Hold;
use crate::divide::{divide, frame_of};
use crate::frames::RemoteFrames;
use crate::links::{Attached, Link, Links};
use crate::message::{Attachment, BadMessage, Message, WINDOW};
use crate::owner::{Answer, Brought, Owner, OwnerError, Served};
use crate::packet::{Packet, Pool};
use crate::report::tell;
use crate::requests::{Request, time_for};
use crate::rests::Rests;
use crate::traffic::{PeerStatus, Recent, Snapshot, Traffic, Transport};
use crate::turns::{Turn, Turns};
use crate::ucx::Ucx;

/// Part of the timeout after which a link without traffic is pinged.
const PING_PART: u32 = 5;
/// Events that are handled before requests and answers get their turn.
const EVENTS: usize = 64;
/// A connection that is used for nothing for so long is made anew to try UCX again.
const IDLE: Duration = Duration::from_secs(10);

/// All links of a node.
pub(crate) struct Node {
    config: Config,
    events: Receiver<Event>,
    ucx: Option<Ucx>,
    pool: Pool,
    frames: RemoteFrames,
    links: Links,
    turns: Turns,
    owner: Owner,
    channels: Channels,
    rests: Rests,
    requests: BTreeMap<u64, (NodeName, Request)>,
    next_request: u64,
    /// When requests of a worker of the own service went on. It cuts off a link where none does for too long.
    moved: BTreeMap<u32, Instant>,
    /// The request that an access belongs to.
    accesses: BTreeMap<u32, u64>,
    next_number: u32,
    answers: Vec<Answer>,
    begin: Instant,
    traffic: BTreeMap<NodeName, Traffic>,
    recent: Recent,
    /// The first number of a transfer.
    first_transfer: u64,
    /// When peers were last to be judged, and whether that was left out.
    ticked: (Instant, bool),
}

impl Node {
    pub(crate) fn new(
        config: Config,
        (events, ucx, pool): (Receiver<Event>, Option<Ucx>, Pool),
        frames: RemoteFrames,
        (owner, channels, rests): (Owner, Channels, Rests),
        first_transfer: u64,
    ) -> Self {
        let unknown = |peer: &NodeName| {
            let why = if connects(config.name, *peer) {
                "it was not reached yet"
            } else {
                "it has not connected yet, which is its task, because its name comes first"
            };
            (*peer, Traffic::new(why))
        };
        let traffic = config.peers.keys().map(unknown).collect();
        Self {
            begin: Instant::now(),
            traffic,
            recent: Recent::default(),
            first_transfer,
            config,
            events,
            ucx,
            pool,
            frames,
            links: Links::default(),
            turns: Turns::default(),
            owner,
            channels,
            rests,
            requests: BTreeMap::new(),
            next_request: 0,
            moved: BTreeMap::new(),
            accesses: BTreeMap::new(),
            next_number: 0,
            answers: Vec::new(),
            ticked: (Instant::now(), false),
        }
    }

    /// Whether something is under way that does not wait for a message of the service.
    pub(crate) fn is_busy(&self) -> bool {
        !self.requests.is_empty() || self.owner.is_busy()
    }

    /// Takes a request of the own service.
    pub(crate) fn accept(&mut self, engine: &mut Engine, job: Job) {
        if let Some(hold) = self.frames.window().and_then(|window| Hold::of(&job, window)) {
            return self.use_in_place(engine, &hold);
        }
        let Some(frame) = frame_of(job.operation()) else {
            return engine.complete(job.id(), job.failed(Failure::Unsupported, 0));
        };
        let Some(remote) = self.frames.find(frame) else {
            return engine.complete(job.id(), job.failed(Failure::Cancelled, 0));
        };
        if !self.links.contains(&remote.node) {
            if let Some(traffic) = self.traffic.get_mut(&remote.node) {
                traffic.asked.count(true, 0, 0);
            }
            return engine.complete(job.id(), job.failed(Failure::PeerLost, 0));
        }
        // After that, because it can take long, and costs a user nothing whose peer is not there.
        let Some((frame, work)) = divide(job.operation()) else {
            return engine.complete(job.id(), job.failed(Failure::Unsupported, 0));
        };
        let number = self.next_request;
        self.next_request += 1;
        let worker = job.id().worker;
        let of_worker = self.requests.values().filter(|(_, one)| one.id().worker == worker);
        let mut before: Option<u64> = None;
        for (_, request) in of_worker {
            before = Some(before.unwrap_or(0).saturating_add(request.total()));
        }
        if before.is_none() {
            self.moved.insert(worker, Instant::now());
        }
        let timeout = self.config.timeout;
        let time = |bytes| time_for(before.unwrap_or(0).saturating_add(bytes), timeout);
        let transfer = self.first_transfer.wrapping_add(number);
        let request = Request::new((job, transfer), frame, work, time);
        self.requests.insert(number, (remote.node, request));
        self.advance_all(engine, remote.node);
    }

    /// Uses memory of this node that the service brings for an access, and completes the job: nothing touches the memory after that.
    fn use_in_place(&mut self, engine: &mut Engine, hold: &Hold) {
        let id = hold.job.id();
        let used = if engine.is_cancelled(id) { Err(Failure::Cancelled) } else { self.carry_out(hold) };
        let outcome = used.map_or_else(|failure| hold.job.failed(failure, 0), |()| hold.job.succeeded());
        engine.complete(id, outcome);
    }

    /// Carries out the access that a hold is for. The answer to one that reads is sent here, with the only copy of the bytes.
    fn carry_out(&mut self, hold: &Hold) -> Result<(), Failure> {
        // Of one that was withdrawn the service may not know yet that it is cancelled.
        let brought = self.owner.brought(hold.slot).ok_or(Failure::Unsupported)?;
        let Brought { connection, operation, transfer, .. } = brought;
        let node = self.links.node_of(connection).ok_or(Failure::Cancelled)?;
        if hold.writes {
            hold.write(brought.payload.unwrap_or_default())?;
            self.owner.written_in_place(hold.slot);
            self.count_direct(node);
            return Ok(());
        }
        let link = self.links.get_mut(&node).ok_or(Failure::Cancelled)?;
        let message = Message::Done { operation, outcome: Ok(0) };
        let mut packet = Packet::new(&self.pool, &message, hold.length() as usize);
        hold.read(packet.payload_mut())?;
        self.owner.answered_in_place(&mut link.served, hold.slot);
        self.answered(node, &message, Some((transfer, 0)), hold.length());
        self.count_direct(node);
        self.send(node, packet, true);
        Ok(())
    }

    fn count_direct(&mut self, node: NodeName) {
        if let Some(traffic) = self.traffic.get_mut(&node) {
            traffic.direct += 1;
        }
    }

    /// Ends requests early that the service no longer wants.
    pub(crate) fn cancel(&mut self, engine: &mut Engine) {
        let cancelled = |(_, request): &(NodeName, Request)| engine.is_cancelled(request.id());
        let numbers: Vec<_> =
            self.requests.iter().filter(|(_, one)| cancelled(one)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.abandon(engine, number, Failure::Cancelled);
        }
    }

    /// Ends a request at once, whatever its peer does. Nothing of its memory is under way, only copies.
    fn abandon(&mut self, engine: &mut Engine, number: u64, failure: Failure) {
        let Some((node, mut request)) = self.requests.remove(&number) else { return };
        request.fail(failure);
        let mut link = self.links.get_mut(&node);
        for (operation, since) in request.under_way() {
            self.accesses.remove(&operation);
            if let Some(link) = &mut link {
                link.abandoned.insert(operation, since);
            }
        }
        self.complete(engine, node, request);
    }

    fn complete(&mut self, engine: &mut Engine, node: NodeName, request: Request) {
        let (read, written) = request.travelled();
        let failure = request.failure().map(|failure| failure.to_string());
        if let Some(traffic) = self.traffic.get_mut(&node) {
            traffic.asked.count(failure.is_some(), read, written);
            if let Some(failure) = &failure {
                traffic.last_error = Some(failure.clone());
            }
        }
        let amount = (request.accesses(), read + written);
        self.recent.asked((node, request.transfer()), amount, request.since(), failure);
        self.moved.insert(request.id().worker, Instant::now());
        request.complete(engine);
    }

    /// Sends the next message of a request, or completes it if it is over. Returns whether it sent one.
    fn advance(&mut self, engine: &mut Engine, number: u64) -> bool {
        let Some((node, request)) = self.requests.get_mut(&number) else { return false };
        let node = *node;
        let mut to_send = None;
        if let Some(link) = self.links.get_mut(&node) {
            match link.attached.get(&request.frame) {
                Some(Attached::As(attachment)) => {
                    if link.outstanding < WINDOW
                        && let Some(packet) = request.next(&self.pool, self.next_number, *attachment)
                    {
                        self.accesses.insert(self.next_number, number);
                        self.next_number = self.next_number.wrapping_add(1);
                        link.outstanding += 1;
                        link.asked_over_ucx |= link.ucx_key.is_some();
                        link.last = number;
                        to_send = Some((packet, true));
                    }
                }
                Some(Attached::Asked(..)) => {}
                None if link.outstanding < WINDOW && !request.is_over() => {
                    if let Some(remote) = self.frames.find(request.frame) {
                        let id = self.next_number;
                        self.next_number = self.next_number.wrapping_add(1);
                        let memferry_engine::Remote { service, token, user, .. } = remote;
                        let attach = Message::Attach { id, service, token, user };
                        link.attached.insert(request.frame, Attached::Asked(id, Instant::now()));
                        link.outstanding += 1;
                        to_send = Some((Packet::short(&attach), false));
                    } else {
                        request.fail(Failure::Cancelled);
                    }
                }
                None => {}
            }
        }
        if request.is_over()
            && let Some((_, request)) = self.requests.remove(&number)
        {
            self.complete(engine, node, request);
        }
        let Some((packet, is_data)) = to_send else { return false };
        self.send(node, packet, is_data);
        true
    }

    /// Advances all requests of a node in turns, from the one after the last one.
    fn advance_all(&mut self, engine: &mut Engine, node: NodeName) {
        let mut any = true;
        while std::mem::take(&mut any) {
            let last = self.links.get(&node).map_or(0, |link| link.last);
            let of_node = self.requests.iter().filter(|(_, (of, _))| *of == node);
            let mut numbers: Vec<_> = of_node.map(|(number, _)| *number).collect();
            let later = numbers.partition_point(|number| *number <= last);
            numbers.rotate_left(later);
            for number in numbers {
                any |= self.advance(engine, number);
            }
        }
    }

    /// Sends a message to a peer: `is_data` over UCX if that may be.
    fn send(&mut self, node: NodeName, packet: Packet, is_data: bool) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.sent = Instant::now();
        if is_data {
            link.used = link.sent;
        }
        let Some(unsent) = link.backlog.add(packet.memory()) else {
            link.is_full = true;
            return;
        };
        match (link.ucx_key, &mut self.ucx) {
            (Some(key), Some(ucx)) if is_data => ucx.send(link.up.connection, packet.with_key(key), unsent),
            // It fails if the connection has ended, which an event reports.
            _ => drop(link.up.sender.send((packet, unsent))),
        }
    }

    /// Handles what came from peers. Returns whether anything did.
    pub(crate) fn receive(&mut self, engine: &mut Engine) -> bool {
        let mut any = false;
        for _ in 0..EVENTS {
            let Ok(event) = self.events.try_recv() else { break };
            any = true;
            match event {
                Event::Up(up) => self.connected(engine, up),
                Event::Bytes { connection, bytes } => {
                    if let Some(node) = self.links.node_of(connection) {
                        self.message(engine, node, &bytes);
                    }
                }
                Event::Down { connection, why } => {
                    if let Some(node) = self.links.node_of(connection) {
                        self.lose(engine, node, &why);
                    }
                }
                Event::Unreached { node, why } => self.unreached(node, why),
                Event::Status(asker) => {
                    // Who does not wait any more needs none.
                    let _ = asker.send(self.status());
                }
            }
        }
        any | self.receive_over_ucx(engine)
    }

    fn receive_over_ucx(&mut self, engine: &mut Engine) -> bool {
        let mut messages = Vec::new();
        let mut failed = Vec::new();
        let any = self.ucx.as_mut().is_some_and(|ucx| ucx.poll(&mut messages, &mut failed));
        for buffer in messages {
            // Anybody can send here. Only a peer knows the key of its connection.
            let Some((key, message)) = buffer.bytes().split_first_chunk() else { continue };
            let key = u128::from_le_bytes(*key);
            if let Some(node) = self.links.sender(key) {
                self.delivered(node);
                self.message(engine, node, message);
            }
        }
        for connection in failed {
            if let Some(node) = self.links.node_of(connection) {
                self.count_undelivered(node);
                self.lose(engine, node, "UCX lost its endpoint");
            }
        }
        any
    }

    /// UCX has delivered a message of a peer, or one to it.
    fn delivered(&mut self, node: NodeName) {
        if let Some(link) = self.links.get_mut(&node)
            && !std::mem::replace(&mut link.ucx_delivers, true)
        {
            self.rests.delivered(node);
        }
    }

    /// A connection is about to be lost because something was not answered.
    fn count_undelivered(&mut self, node: NodeName) {
        let is_mute = |link: &Link| link.asked_over_ucx && !link.ucx_delivers;
        if self.links.get(&node).is_some_and(is_mute)
            && let Some(pause) = self.rests.lost(node, Instant::now())
        {
            tell(format_args!(
                "UCX delivered nothing to or from {node} on several connections, so bytes go encrypted; it is tried again in {} s. \
                 Is its port filtered, does UCX use a network that the two do not share (UCX_NET_DEVICES), or was the peer's service stuck?",
                pause.as_secs()
            ));
        }
    }

    fn connected(&mut self, engine: &mut Engine, up: Box<Up>) {
        let node = up.node;
        // The peer's process was started again, or noticed the end of the last connection before this one did.
        if self.links.contains(&node) {
            self.lose(engine, node, "the peer has connected again");
        }
        let peer = self.config.peers.get(&node);
        let is_encrypted = up.greeting.require_encryption
            || peer.is_none_or(|peer| peer.require_encryption)
            || !up.offers_ucx;
        let mut ucx_key = None;
        if let (false, Some(ucx), Some(theirs)) = (is_encrypted, &mut self.ucx, &up.greeting.ucx) {
            match ucx.connect(up.connection, &theirs.address) {
                Ok(()) => ucx_key = Some(theirs.key),
                Err(error) => tell(format_args!("UCX does not reach {node}: {error}")),
            }
        }
        // An endpoint that one side cannot make changes nothing for the other: each direction goes its own way.
        let takes_ucx = !is_encrypted && self.ucx.is_some() && up.greeting.ucx.is_some();
        let way = if ucx_key.is_some() { "over UCX, in clear text" } else { "encrypted" };
        tell(format_args!("{node} is connected; bytes go {way}"));
        let now = Instant::now();
        if let Some(traffic) = self.traffic.get_mut(&node) {
            traffic.since = now;
        }
        let served = Served::new(peer.is_some_and(|peer| peer.direct));
        let link = Link {
            up,
            ucx_key,
            takes_ucx,
            asked_over_ucx: false,
            ucx_delivers: false,
            used: now,
            heard: now,
            sent: now,
            attached: BTreeMap::new(),
            outstanding: 0,
            abandoned: BTreeMap::new(),
            last: 0,
            backlog: Backlog::default(),
            is_full: false,
            served,
        };
        self.links.insert(node, link);
    }

    /// A connection has ended: each request that uses it fails, once.
    fn lose(&mut self, engine: &mut Engine, node: NodeName, why: &str) {
        let Some(link) = self.links.remove(node) else { return };
        self.turns.note(node, None);
        tell(format_args!("the link to {node} is lost: {why}"));
        if let Some(traffic) = self.traffic.get_mut(&node) {
            traffic.since = Instant::now();
            traffic.lost += 1;
            why.clone_into(&mut traffic.why);
            traffic.last_error = Some(format!("lost: {why}"));
        }
        link.up.close();
        if let Some(ucx) = &mut self.ucx {
            ucx.close(link.up.connection);
        }
        self.owner.give_back(link.served);
        let numbers: Vec<_> =
            self.requests.iter().filter(|(_, (of, _))| *of == node).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some((_, mut request)) = self.requests.remove(&number) else { continue };
            request.fail(Failure::PeerLost);
            for (operation, _) in request.under_way() {
                self.accesses.remove(&operation);
            }
            self.complete(engine, node, request);
        }
    }

    /// A peer was not reached. What broke an earlier connection is less news than that.
    fn unreached(&mut self, node: NodeName, why: String) {
        if !self.links.contains(&node)
            && let Some(traffic) = self.traffic.get_mut(&node)
        {
            traffic.last_error = Some(why.clone());
            traffic.why = why;
        }
    }

    /// What the administrator may know.
    fn status(&self) -> Snapshot {
        let frames = self.frames.counts();
        let transport = |is_ucx: bool| if is_ucx { Transport::Ucx } else { Transport::Encrypted };
        let peer = |(node, traffic): (&NodeName, &Traffic)| {
            let link = self.links.get(node);
            PeerStatus {
                name: node.to_string(),
                connected: link.is_some(),
                seconds: traffic.since.elapsed().as_secs(),
                why: link.is_none().then(|| traffic.why.clone()),
                sends: link.map(|link| transport(link.ucx_key.is_some())),
                receives: link.map(|link| transport(link.takes_ucx)),
                frames: frames.get(node).copied().unwrap_or(0),
                grants: link.map_or(0, |link| link.served.grants()),
                channels: self.channels.count(*node),
                ucx_rests: self.rests.left(*node, Instant::now()).map(|left| left.as_secs()),
                under_way: self.requests.values().filter(|(of, _)| of == node).count() as u64,
                asked: traffic.asked,
                served: traffic.served,
                direct: traffic.direct,
                lost: traffic.lost,
                last_error: traffic.last_error.clone(),
            }
        };
        Snapshot {
            node: self.config.name.to_string(),
            process: std::process::id(),
            seconds: self.begin.elapsed().as_secs(),
            ucx: self.ucx.as_ref().map(Ucx::version),
            peers: self.traffic.iter().map(peer).collect(),
            transfers: self.recent.status(),
        }
    }

    /// Counts an answer to a peer.
    fn answered(&mut self, node: NodeName, message: &Message, access: Option<(u64, u64)>, read: u64) {
        let reason = match message {
            Message::Attached { outcome: Err(reason), .. } | Message::Done { outcome: Err(reason), .. } => {
                Some(reason.to_string())
            }
            _ => None,
        };
        if let Some(traffic) = self.traffic.get_mut(&node) {
            if access.is_some() || reason.is_some() {
                let written = access.map_or(0, |(_, written)| written);
                traffic.served.count(reason.is_some(), read, written);
            }
            if let Some(reason) = &reason {
                traffic.last_error = Some(format!("an access of a user there was refused: {reason}"));
            }
        }
        if let Some((transfer, written)) = access {
            self.recent.served((node, transfer), read + written, reason);
        }
    }

    /// Handles a message of a peer.
    fn message(&mut self, engine: &mut Engine, node: NodeName, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.heard = Instant::now();
        if !Message::is_ping(bytes) {
            link.used = link.heard;
        }
        let served = &mut link.served;
        let handled = match Message::decode(bytes) {
            // Channels have the encrypted connection only.
            Ok((Message::Ping | Message::Channel { .. }, _)) => Ok(()),
            Ok((Message::Detach { attachment }, _)) => {
                self.owner.detach(served, attachment);
                Ok(())
            }
            Ok((
                message @ (Message::Attach { .. } | Message::Access { .. } | Message::Crc { .. }),
                payload,
            )) => Owner::ask(served, message, payload).map(|()| self.turns.note(node, served.needs())),
            Ok((Message::Attached { id, outcome }, _)) => self.attached(engine, node, id, outcome),
            Ok((Message::Done { operation, outcome }, payload)) => {
                self.done(engine, node, operation, outcome, payload)
            }
            Err(bad) => Err(bad),
        };
        if let Err(bad) = handled {
            self.lose(engine, node, &format!("it broke the protocol: {bad}"));
        }
    }

    fn attached(
        &mut self,
        engine: &mut Engine,
        node: NodeName,
        id: u32,
        outcome: Result<Attachment, PeerReason>,
    ) -> Result<(), BadMessage> {
        let link = self.links.get_mut(&node).ok_or(BadMessage::Unasked)?;
        let is_it = |state: &Attached| matches!(state, Attached::Asked(asked, _) if *asked == id);
        let asked = link.attached.iter().find(|(_, state)| is_it(state));
        let frame = asked.map(|(frame, _)| *frame).ok_or(BadMessage::Unasked)?;
        link.outstanding -= 1;
        match outcome {
            Ok(attachment) => {
                link.attached.insert(frame, Attached::As(attachment.number));
                // The frame may have ended before this answer came.
                if self.frames.find(frame).is_none() {
                    self.detach(frame);
                }
            }
            Err(reason) => {
                link.attached.remove(&frame);
                let of_frame = |request: &Request| request.frame == frame;
                let refused = self.requests.values_mut().filter(|(of, one)| *of == node && of_frame(one));
                refused.for_each(|(_, request)| request.fail(Failure::PeerRefused { reason }));
            }
        }
        self.advance_all(engine, node);
        Ok(())
    }

    fn done(
        &mut self,
        engine: &mut Engine,
        node: NodeName,
        operation: u32,
        outcome: Result<u32, PeerReason>,
        payload: &[u8],
    ) -> Result<(), BadMessage> {
        if let Some(link) = self.links.get_mut(&node)
            && link.abandoned.remove(&operation).is_some()
        {
            link.outstanding -= 1;
            if link.ucx_key.is_some() {
                self.delivered(node);
            }
            self.advance_all(engine, node);
            return Ok(());
        }
        let number = self.accesses.get(&operation).copied().ok_or(BadMessage::Unasked)?;
        let of_node = self.requests.get_mut(&number).filter(|(of, _)| *of == node);
        let (_, request) = of_node.ok_or(BadMessage::Unasked)?;
        let before = request.done_bytes();
        if !request.answered(engine, operation, outcome, payload) {
            return Err(BadMessage::Unasked);
        }
        if request.done_bytes() > before {
            self.moved.insert(request.id().worker, Instant::now());
        }
        let frame = request.frame;
        self.accesses.remove(&operation);
        // An access that went over UCX was answered.
        if self.links.get(&node).is_some_and(|link| link.ucx_key.is_some()) {
            self.delivered(node);
        }
        if let Some(link) = self.links.get_mut(&node) {
            link.outstanding -= 1;
            // What was revoked may be granted again under another token only, but the peer keeps it until it hears of that.
            let is_gone =
                matches!(outcome, Err(PeerReason::NoSuchGrant | PeerReason::Revoked | PeerReason::Expired));
            if is_gone && let Some(Attached::As(attachment)) = link.attached.get(&frame).copied() {
                link.attached.remove(&frame);
                self.send(node, Packet::short(&Message::Detach { attachment }), false);
            }
        }
        self.advance_all(engine, node);
        Ok(())
    }

    /// Tells the peer that a frame is not used any more.
    fn detach(&mut self, frame: usize) {
        let mut gone = Vec::new();
        for (node, link) in self.links.iter_mut() {
            // One that was asked for is given back when the answer comes.
            if let Some(Attached::As(attachment)) = link.attached.get(&frame).copied() {
                link.attached.remove(&frame);
                gone.push((*node, attachment));
            }
        }
        for (node, attachment) in gone {
            self.send(node, Packet::short(&Message::Detach { attachment }), false);
        }
    }

    /// Lets the own service go on with what peers asked, and answers them. Returns whether anything happened.
    ///
    /// # Errors
    /// [`OwnerError::Lost`].
    pub(crate) fn serve(&mut self, has_all_jobs: bool) -> Result<bool, OwnerError> {
        let Self { owner, links, answers, .. } = self;
        let mut any = self.turns.run(|node| {
            let Some(link) = links.get_mut(&node) else { return Ok(Turn::Begun(None)) };
            owner.start((node, link.up.connection), &mut link.served, answers)
        })?;
        any |= self.owner.drop_some();
        any |= self.owner.withdraw_late(has_all_jobs);
        any |= self.owner.poll(&mut self.links, &mut self.answers)?;
        for connection in self.owner.take_again() {
            if let Some((node, link)) = self.links.of_connection(connection) {
                self.turns.note(node, link.served.needs());
            }
        }
        for answer in std::mem::take(&mut self.answers) {
            let Some(node) = self.links.node_of(answer.connection) else { continue };
            let Answer { access, message, packet, .. } = answer;
            self.answered(node, &message, access, packet.payload_length() as u64);
            self.send(node, packet, matches!(message, Message::Done { .. }));
        }
        Ok(any)
    }

    /// What has to be done from time to time: pings, silent peers, frames that ended.
    pub(crate) fn tick(&mut self, engine: &mut Engine) {
        for frame in self.frames.take_gone() {
            self.detach(frame);
            let is_named = self.links.iter().any(|(_, link)| link.attached.contains_key(&frame))
                || self.requests.values().any(|(_, request)| request.frame == frame);
            self.frames.free(frame, is_named);
        }
        let timeout = self.config.timeout;
        // This process did not run: what peers said meanwhile is not read yet. They are judged the next time, however long that takes.
        let (before, was_skipped) = self.ticked;
        let skips = before.elapsed() > timeout / 2 && !was_skipped;
        self.ticked = (Instant::now(), skips);
        if skips {
            return;
        }
        let is_silent = |link: &Link| link.heard.elapsed() > timeout;
        let silent: BTreeSet<_> =
            self.links.iter().filter(|(_, link)| is_silent(link)).map(|(node, _)| *node).collect();
        for node in silent {
            self.lose(engine, node, &format!("it said nothing for {} ms", timeout.as_millis()));
        }
        let mut late: BTreeSet<_> =
            self.requests.values().filter(|(_, one)| one.is_late(timeout)).map(|(node, _)| *node).collect();
        let asks = |state: &Attached| matches!(state, Attached::Asked(_, since) if since.elapsed() > timeout);
        late.extend(
            self.links.iter().filter(|(_, link)| link.attached.values().any(asks)).map(|(node, _)| *node),
        );
        let is_old = |since: &Instant| since.elapsed() > timeout;
        late.extend(
            self.links.iter().filter(|(_, link)| link.abandoned.values().any(is_old)).map(|(node, _)| *node),
        );
        // The own service looks at requests of each worker, not at accesses.
        let stuck = |request: &Request| self.moved.get(&request.id().worker).is_some_and(is_old);
        late.extend(
            self.requests
                .values()
                .filter(|(_, one)| stuck(one) && is_old(&one.since()))
                .map(|(node, _)| *node),
        );
        for node in late {
            self.count_undelivered(node);
            self.lose(engine, node, &format!("it did not answer for {} ms", timeout.as_millis()));
        }
        let overdue: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, (_, one))| one.is_overdue())
            .map(|(number, _)| *number)
            .collect();
        for number in overdue {
            self.abandon(engine, number, Failure::EngineTimedOut);
        }
        let full: Vec<_> =
            self.links.iter().filter(|(_, link)| link.is_full).map(|(node, _)| *node).collect();
        for node in full {
            self.lose(engine, node, "it does not read what is sent to it");
        }
        self.try_ucx_again(engine);
        let quiet = timeout / PING_PART;
        let due = |link: &Link| link.sent.elapsed() > quiet;
        let due: Vec<_> = self.links.iter().filter(|(_, link)| due(link)).map(|(node, _)| *node).collect();
        for node in due {
            self.send(node, Packet::short(&Message::Ping), false);
        }
    }

    /// Makes connections anew that nobody uses and whose bytes go encrypted because UCX rested: whether it is used is said at the beginning.
    fn try_ucx_again(&mut self, engine: &mut Engine) {
        let now = Instant::now();
        let is_due = |(node, link): &(&NodeName, &Link)| {
            let is_idle = link.outstanding == 0 && link.used.elapsed() > IDLE;
            let rested = self.ucx.is_some() && !link.up.offers_ucx;
            rested && is_idle && self.rests.left(**node, now).is_none()
        };
        let due = self.links.iter().filter(is_due).map(|(node, link)| (*node, link.up.uses.clone()));
        for (node, uses) in due.collect::<Vec<_>>() {
            // From then on no channel begins on it, neither one of a client here nor one that the peer asks for.
            if uses.give_up() {
                self.lose(engine, node, "UCX is tried again");
            }
        }
    }

    /// How often [`tick`](Self::tick) has to be called.
    pub(crate) fn tick_interval(&self) -> Duration {
        self.config.timeout / (2 * PING_PART)
    }
}
