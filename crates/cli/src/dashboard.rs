//! `memferry dashboard`: a page that shows the metrics live.
//!
//! ```text
//! GET /         ─► page.html: one file, and a policy that lets the browser load nothing else
//! GET /events   ─► server-sent events, one a second: the text of `metrics`, with the time at which it was made as the id
//! GET /metrics  ─► the same text once
//! ```
//!
//! All viewers share one query of the service a second. The page computes rates from two events, and draws; nothing here does.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use sha2::{Digest, Sha256};

use crate::http::{self, Address, Resource, Site, Text};
use crate::metrics::{self, Scraper};
use crate::{CommandError, socket};

const PAGE: &str = include_str!("dashboard/page.html");
/// How old a snapshot may be that another viewer gets. Less than the time between two events.
const FRESH: Duration = Duration::from_millis(900);

/// Arguments of `dashboard`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
    /// Where to serve the page: 127.0.0.1:PORT, or unix:PATH for a proxy. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9465")]
    listen: Address,
    /// Allow an address that other machines can reach. There is neither encryption nor a log-in: all who can connect see users and
    /// processes of the service's clients.
    #[arg(long)]
    remote: bool,
}

/// Serves the page until a signal.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let is_local = arguments.listen.is_local();
    if !is_local && !arguments.remote {
        return Err("other machines could reach this address and see the service's clients; listen on 127.0.0.1, or say --remote"
            .into());
    }
    let scraper = Scraper::start(&arguments.socket)?;
    http::run(&arguments.listen, "dashboard", Dashboard::new(scraper, is_local))
}

/// A text of the metrics, and when it was made.
struct Snapshot {
    made: Instant,
    event: Arc<str>,
}

struct Dashboard {
    scraper: Scraper,
    only_loopback: bool,
    headers: String,
    started: Instant,
    latest: Mutex<Option<Snapshot>>,
}

impl Dashboard {
    fn new(scraper: Scraper, only_loopback: bool) -> Self {
        let headers =
            format!("Content-Security-Policy: {}\r\nReferrer-Policy: no-referrer\r\n", policy(PAGE));
        Self { scraper, only_loopback, headers, started: Instant::now(), latest: Mutex::default() }
    }

    /// The latest event, or a new one if it is old. Viewers that come meanwhile wait for the same answer of the service.
    fn event(&self) -> String {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Snapshot { made, event }) = &*latest
            && made.elapsed() < FRESH
        {
            return event.to_string();
        }
        let text = self.scraper.scrape();
        let made = Instant::now();
        let event: Arc<str> = event(made.duration_since(self.started), &text).into();
        *latest = Some(Snapshot { made, event: Arc::clone(&event) });
        event.to_string()
    }
}

impl Site for Dashboard {
    fn find<'a>(&'a self, path: &str) -> Option<Resource<'a>> {
        match path {
            "/" => Some(Resource::Text(Text {
                content_type: "text/html; charset=utf-8",
                headers: &self.headers,
                make: Box::new(|| PAGE.to_owned()),
            })),
            "/events" => Some(Resource::Events(Box::new(|| self.event()))),
            "/metrics" => Some(metrics::resource(&self.scraper)),
            _ => None,
        }
    }

    fn is_own_host(&self, host: &str) -> bool {
        http::is_plain_host(host, self.only_loopback)
    }
}

/// An event with these lines, made at a time in milliseconds.
fn event(made: Duration, text: &str) -> String {
    let lines: String =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("data: {line}\n")).collect();
    format!("id: {}\n{lines}\n", made.as_millis())
}

/// The policy by which a browser runs the page's own style and script, and connects only to this server.
fn policy(page: &str) -> String {
    let hash = |element| format!("'sha256-{}'", base64(&Sha256::digest(inner(page, element))));
    let script = hash("script");
    let style = hash("style");
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    )
}

/// What is between the tags of the page's only element of this name.
fn inner<'a>(page: &'a str, element: &str) -> &'a str {
    let after = page.split_once(&format!("<{element}>")).map_or("", |(_, after)| after);
    after.split_once(&format!("</{element}>")).map_or("", |(inner, _)| inner)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let word =
            bytes.iter().zip([16, 8, 0]).fold(0, |word, (byte, shift)| word | u32::from(*byte) << shift);
        let digit = |place: usize| char::from(DIGITS[(word >> (18 - 6 * place)) as usize & 63]);
        (0..4).map(move |place| if place <= bytes.len() { digit(place) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_in_base64() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("fooba\u{ff}", "Zm9vYmHDvw==")]
        {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn the_page_needs_nothing_else() {
        for element in ["script", "style"] {
            assert!(!inner(PAGE, element).is_empty(), "{element}");
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
        }
        for word in
            ["http:", "https:", " src=", "@import", "url(", "innerHTML", " style=", " onclick=", "eval("]
        {
            let allowed = usize::from(word == "http:");
            assert_eq!(
                PAGE.matches(word).count(),
                allowed,
                "{word}: only the name of SVG's elements is an address"
            );
        }
        let policy = policy("<style>a</style><script>b</script>");
        assert!(
            policy.contains("script-src 'sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0=';"),
            "{policy}"
        );
    }

    #[test]
    fn events_are_framed_by_lines() {
        let text = event(Duration::from_millis(1500), "# HELP a b\na 1\nb{c=\"d\"} 2\n");
        assert_eq!(text, "id: 1500\ndata: a 1\ndata: b{c=\"d\"} 2\n\n");
    }

    #[test]
    fn dashboards_of_grafana_name_metrics_that_exist() {
        let text = include_str!("../../../packaging/grafana/memferry.json");
        let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 5));
        let families = metrics::families();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let mut named = 0;
        for (at, _) in text.match_indices("memferry_") {
            let name = text[at..].split(|letter| !is_part(letter)).next().unwrap_or_default();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(families.iter().any(|known| known == name || known == family), "{name}");
            named += 1;
        }
        assert!(named > 10);
    }
}
