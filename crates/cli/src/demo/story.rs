//! The demo's five steps: the orders, the expected reports, and the text printed about them.

use memferry::{Client, Handle, SessionId};

use super::lines::{Fetched, Order, Report};
use super::stage::{Actor, Part, Service, Stage};
use super::{Inputs, KEY, expected};
use crate::measure::{Bytes, Comparison, Time};
use crate::output::say;
use crate::picture::Picture;
use crate::{CommandError, status};

/// The processes, and data that one step leaves for the next.
pub(crate) struct Story<'a> {
    // Dropped in this order: clients before the service.
    a: Actor,
    b: Actor,
    service: Service,
    stage: &'a Stage,
    inputs: &'a Inputs,
    /// A's handle and the checksum of its memory.
    secret: Option<(Handle, String)>,
    b_session: SessionId,
}

pub(super) fn unexpected(report: &Report) -> CommandError {
    format!("a client's report does not match its order: {report:?}").into()
}

impl<'a> Story<'a> {
    /// Starts the three processes and introduces the clients.
    pub(crate) fn open(stage: &'a Stage, inputs: &'a Inputs) -> Result<Self, CommandError> {
        say!("memferry demo: a service and two clients, each in its own process\n");
        match &stage.users {
            Ok(()) => say!(
                "Run as root, so each process has its own unprivileged user: service {}, client A {}, client B {}.",
                Part::Service.user(),
                Part::A.user(),
                Part::B.user()
            ),
            Err(why) => say!(
                "All processes run as one user ({why}), so isolation between users is not shown; the checks are the same."
            ),
        }
        let service = Service::start(stage, &[])?;
        let workers = Client::connect(&service.socket)?.status()?.workers.len();
        let workers = match workers {
            1 => "one CPU worker, a thread of the service".to_owned(),
            workers => format!("{workers} CPU workers, threads of the service"),
        };
        say!(
            "The service is process {}. Bytes are moved by {workers}; no DMA hardware is",
            service.process()
        );
        say!("used. Clients save the time of their own threads, not of the machine.");
        let mut a = Actor::start(stage, Part::A, &service.socket)?;
        let mut b = Actor::start(stage, Part::B, &service.socket)?;
        introduce("A", &mut a)?;
        let b_session = introduce("B", &mut b)?;
        Ok(Self { a, b, service, stage, inputs, secret: None, b_session })
    }

    /// Step 1: A shares a file, B copies it.
    pub(crate) fn file(&mut self) -> Result<(), CommandError> {
        say!("\n1. A file goes from A to B through a grant");
        let file = self.stage.give(Part::A, "file", &self.inputs.file)?;
        let (handle, length, given) = match self.a.ask(&Order::Register { file })? {
            Report::Registered { handle, length, checksum } => (handle, length, checksum),
            other => return Err(unexpected(&other)),
        };
        say!("   A registered {} of {} as its frame {handle}.", Bytes(length), self.inputs.file_name);
        let token = match self.a.ask(&Order::Grant { to: self.b_session })? {
            Report::Granted { token } => token,
            other => return Err(unexpected(&other)),
        };
        say!("   A granted B's session the right to read these bytes; the token is {token}.");
        let fetched = match self.b.ask(&Order::Fetch { token })? {
            Report::Fetched(fetched) => fetched,
            other => return Err(unexpected(&other)),
        };
        if fetched.checksum != given {
            return Err(format!("B's copy has SHA-256 {}, A's memory has {given}", fetched.checksum).into());
        }
        say!("   A's memory: SHA-256 {given}");
        say!("   B's copy:   SHA-256 {}  the same", fetched.checksum);
        print_fetched(&fetched)?;
        self.secret = Some((handle, given));
        Ok(())
    }

    /// Step 2: B rotates a picture and lays another over it.
    pub(crate) fn pictures(&mut self) -> Result<(), CommandError> {
        let Inputs { picture, badge, output, .. } = self.inputs;
        say!("\n2. B rotates a picture by 90 degrees and lays a badge over it, with a transparent colour");
        let at =
            (picture.height.saturating_sub(badge.width) / 2, picture.width.saturating_sub(badge.height + 48));
        let order = Order::Paint {
            base: self.stage.give(Part::B, "picture.png", &picture.encode()?)?,
            badge: self.stage.give(Part::B, "badge.png", &badge.encode()?)?,
            at,
            key: KEY.map(|part| format!("{part:02x}")).concat(),
            output: self.stage.path_of(Part::B, "result.png"),
        };
        let (turned, overlaid) = match self.b.ask(&order)? {
            Report::Painted { turned, overlaid } => (turned, overlaid),
            other => return Err(unexpected(&other)),
        };
        let width = picture.width;
        let height = picture.height;
        say!(
            "   Rotating {width} x {height} pixels of 32 bits, each read from another row (memcpy reads whole rows):"
        );
        print_comparison(&turned)?;
        say!("   Overlaying {} x {} pixels, each compared with the key:", badge.width, badge.height);
        print_comparison(&overlaid)?;
        let result = Picture::load(&self.stage.path_of(Part::B, "result.png"))?;
        let wanted = expected::turned_with_badge(picture, badge, at, KEY);
        if (result.width, result.height, &result.pixels) != (wanted.width, wanted.height, &wanted.pixels) {
            return Err("the picture differs from the one computed pixel by pixel".into());
        }
        result.save(output)?;
        say!("   Every pixel equals the one computed here. The picture is in {}", output.display());
        self.stage.check_interrupted()
    }

    /// Step 3: B exceeds its rights.
    pub(crate) fn refusals(&mut self) -> Result<(), CommandError> {
        say!("\n3. B exceeds its rights, and the service refuses");
        let (handle, given) = self.secret.clone().ok_or("no file was shared yet")?;
        say!("   B writes to A's memory, which it may only read:");
        refused(&mut self.b, &Order::Write)?;
        say!("   B uses A's own handle {handle} as if it were a token granted to B:");
        refused(&mut self.b, &Order::Forge { handle })?;
        match self.a.ask(&Order::Checksum)? {
            Report::Checksum(now) if now == given => {
                say!("   A's memory still has the same SHA-256.");
                Ok(())
            }
            Report::Checksum(now) => Err(format!("A's memory has changed: SHA-256 {now}").into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Step 4: A revokes its grant.
    pub(crate) fn revocation(&mut self) -> Result<(), CommandError> {
        say!("\n4. A revokes the grant, and B copies once more");
        match self.a.ask(&Order::Revoke)? {
            Report::Revoked => {}
            other => return Err(unexpected(&other)),
        }
        refused(&mut self.b, &Order::FetchAgain)
    }

    /// Step 5: the service's status, and the end of all processes.
    pub(crate) fn end(self) -> Result<(), CommandError> {
        say!("\n5. The service's status (`memferry status`), and the end");
        status::print(&Client::connect(&self.service.socket)?, "   ")?;
        self.b.dismiss()?;
        self.a.dismiss()?;
        say!("   Both clients ended after their input was closed.");
        self.service.stop()?;
        say!("   The service received SIGTERM, ended with status 0 and removed its socket.");
        Ok(())
    }
}

/// Gives an order that the service must refuse.
pub(super) fn refused(actor: &mut Actor, order: &Order) -> Result<(), CommandError> {
    match actor.ask(order)? {
        Report::Refused { message } => {
            say!("     refused: {message}");
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

pub(super) fn introduce(name: &str, actor: &mut Actor) -> Result<SessionId, CommandError> {
    match actor.ask(&Order::Introduce)? {
        Report::Introduced { session, user, process } => {
            say!("Client {name} is process {process} of user {user}, session {session}.");
            Ok(session)
        }
        other => Err(unexpected(&other)),
    }
}

fn print_comparison(comparison: &Comparison) -> Result<(), CommandError> {
    say!("     {comparison}");
    say!("     B's thread used {} of CPU time for each", Time(comparison.cpu));
    Ok(())
}

fn print_fetched(fetched: &Fetched) -> Result<(), CommandError> {
    say!(
        "   The first copy, which touches all pages for the first time, took {}. Then:",
        Time(fetched.first)
    );
    print_comparison(&fetched.comparison)?;
    let overlap = fetched.overlap;
    let percent = |per_mille: u64| per_mille as f64 / 10.0;
    say!(
        "   While {} such copies ran ({}), B's thread hashed {} of other data: {:.0} % of the amount it",
        overlap.transfers,
        Time(overlap.took),
        Bytes(overlap.hashed),
        percent(overlap.share_per_mille)
    );
    say!("   hashes in that time without transfers. With memcpy it would have hashed nothing meanwhile.");
    if overlap.running_per_mille < 950 {
        let running = percent(overlap.running_per_mille);
        say!("   (The machine was busy: B's thread had a CPU for only {running:.0} % of that time.)");
    }
    Ok(())
}
