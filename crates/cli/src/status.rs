//! `memferry status`: shows what a running service is doing, once or repeatedly.
//!
//! ```text
//! once     Client::status ─► table or JSON
//! --watch  every interval ─► rates since the last snapshot ─► drawn over the last table, or below it, until a signal
//! ```
//!
//! `table` formats the numbers. The service counts them.

mod table;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use memferry::{Client, Status};

use crate::interrupt::Interrupt;
use crate::output::{self, say};
use crate::{CommandError, socket};
use table::{Line, Snapshot};

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
    /// Print JSON; with --watch, one object per line.
    #[arg(long)]
    json: bool,
    /// Repeat every SECONDS, with rates; Ctrl-C ends it.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    if (0.05..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("the interval is {text} seconds; it has to be from 0.05 to 86400"))
    }
}

/// Runs `memferry status`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let client = Client::connect(&arguments.socket)?;
    if let Some(interval) = arguments.watch {
        return watch(&client, interval, arguments.json);
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&client.status()?)?);
        return Ok(());
    }
    print(&client, "")
}

/// Prints the service's status as a table, each line after `indent`.
pub(crate) fn print(client: &Client, indent: &str) -> Result<(), CommandError> {
    let snapshot = Snapshot { own: client.session(), status: &client.status()?, before: None };
    let colors = output::has_colors();
    for line in snapshot.table(output::columns().saturating_sub(indent.len())) {
        say!("{indent}{}", line.shown(colors));
    }
    Ok(())
}

fn watch(client: &Client, interval: Duration, json: bool) -> Result<(), CommandError> {
    Interrupt::new()?.end_process()?;
    let redraws = std::io::stdout().is_terminal() && !json;
    let mut before: Option<(Status, Instant)> = None;
    loop {
        let status = client.status()?;
        let now = Instant::now();
        let since = before.as_ref().map(|(status, then)| (status, now - *then));
        let snapshot = Snapshot { own: client.session(), status: &status, before: since };
        let text = if json {
            format!("{}\n", snapshot.json()?)
        } else if redraws {
            drawn_over(&snapshot.table(output::columns()))
        } else {
            let separator = if before.is_some() { "\n" } else { "" };
            let lines = snapshot.table(usize::MAX).iter().map(|line| line.shown(false)).collect::<Vec<_>>();
            format!("{separator}{}\n", lines.join("\n"))
        };
        // Written with one call, so that a signal does not leave half of it.
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(output::Unwritten)?;
        before = Some((status, now));
        std::thread::sleep(interval);
    }
}

/// Draws the lines over the terminal from its top, cut to its size.
fn drawn_over(lines: &[Line]) -> String {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let height = size.map(|size| size.ws_row).filter(|rows| *rows > 0).map_or(usize::MAX, usize::from);
    let width = output::columns();
    let colors = output::has_colors();
    // Cursor home; each line clears its rest; finally everything below is cleared.
    let mut drawn = String::from("\x1b[H");
    for line in lines.iter().take(height.saturating_sub(1).max(1)) {
        let text = line.text.chars().take(width).collect();
        drawn.push_str(&Line { text, ..*line }.shown(colors));
        drawn.push_str("\x1b[K\n");
    }
    drawn + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e9", "often", ""] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
