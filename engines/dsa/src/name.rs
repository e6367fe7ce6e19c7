//! Names of work queues.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The name of a work queue, as in `wq0.3`: the device's number, and that of the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueName {
    device: u16,
    queue: u8,
}

impl QueueName {
    /// The device's name in sysfs.
    pub fn device(self) -> String {
        format!("dsa{}", self.device)
    }
}

/// A text that names no work queue.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "'{0}' is no work queue, as wq0.0 is; `memferry doctor` and `accel-config list` show those of this machine"
)]
pub struct BadName(String);

impl FromStr for QueueName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        parse(text).ok_or_else(|| BadName(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<QueueName> {
    let (device, queue) = text.strip_prefix("wq")?.split_once('.')?;
    // One name for each queue: no sign, and no zeros in front.
    let is_plain = |digits: &str| {
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'))
    };
    (is_plain(device) && is_plain(queue))
        .then(|| Some(QueueName { device: device.parse().ok()?, queue: queue.parse().ok()? }))
        .flatten()
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wq{}.{}", self.device, self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        for (text, device) in [("wq0.0", "dsa0"), ("wq12.127", "dsa12")] {
            let name: QueueName = text.parse().unwrap();
            assert_eq!((name.to_string().as_str(), name.device().as_str()), (text, device));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "wq",
            "wq0",
            "0.0",
            "wq.",
            "wq0.",
            "wq.0",
            "wq+1.0",
            "wq01.0",
            "wq0.00",
            "wq0.256",
            "wq65536.0",
        ]
        .into_iter()
        .chain(["wq0.0/../x", "../wq0.0", "wq0.0.0", " wq0.0", "dsa0/wq0.0"])
        {
            assert_eq!(text.parse::<QueueName>(), Err(BadName(text.to_owned())));
        }
    }
}
