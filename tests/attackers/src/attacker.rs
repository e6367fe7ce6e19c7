//! An attacker as its parent sees it.

use std::path::Path;
use std::time::Duration;

use crate::{Attack, Failed, Player, roles};

/// Time for an attack to run: the largest ones make half a million watches or map 1 GiB first.
const START_LIMIT: Duration = Duration::from_secs(20);

/// What became of an attack.
pub enum Started {
    /// It runs until this is dropped.
    Running(Player),
    /// This machine lacks what it needs, or the service refuses its means from the beginning.
    Impossible(String),
}

fn start(arguments: &[String], words: &[&str]) -> Result<Started, Failed> {
    let player = Player::start(roles::role(arguments, words))?;
    Ok(match player.line(START_LIMIT) {
        Ok(line) if line == "running" => Started::Running(player),
        Ok(line) => Started::Impossible(line),
        Err(silence) => Started::Impossible(format!("it did not begin: {silence:?}")),
    })
}

/// Starts an attack and waits until it runs. A `short` one uses little memory and few processes.
///
/// # Errors
/// If its process cannot be started.
pub fn start_attack(
    arguments: &[String],
    attack: &Attack,
    socket: &Path,
    user: u32,
    short: bool,
) -> Result<Started, Failed> {
    let socket = socket.to_str().ok_or("the path of the socket is not UTF-8")?;
    let size = if short { "short" } else { "full" };
    start(arguments, &["attack", attack.name, socket, &user.to_string(), size])
}

/// Starts a client that copies 1 MiB again and again.
///
/// # Errors
/// If its process cannot be started.
pub fn start_honest(arguments: &[String], socket: &Path, user: u32) -> Result<Started, Failed> {
    let socket = socket.to_str().ok_or("the path of the socket is not UTF-8")?;
    start(arguments, &["honest", socket, &user.to_string()])
}
