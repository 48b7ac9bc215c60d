//! Nothing outlives a server, however it dies (E1); and what a successor can prove about it (D9).

use super::Watched;
use super::roles::Server;
use crate::{LockError, LockFile, LockState, lock_state};

#[test]
fn ffmpeg_ends_with_a_killed_server() {
    let mut server = Server::start("server", None);
    let ffmpeg = Watched::open(server.ask("leader"));
    server.kill();
    ffmpeg.expect_death();
}

#[test]
fn a_grandchild_ends_with_a_killed_server() {
    let mut server = Server::start("server", None);
    let first = Watched::open(server.ask("grandchild"));
    let second = Watched::open(server.ask("grandchild"));
    server.kill();
    first.expect_death();
    second.expect_death();
}

#[test]
fn without_a_guardian_the_parent_death_signal_still_ends_a_child() {
    let mut server = Server::start("server without guardian", None);
    let ffmpeg = Watched::open(server.ask("leader"));
    server.kill();
    ffmpeg.expect_death();
}

#[test]
fn a_killed_guardian_is_replaced_and_the_new_one_guards_old_and_new_children() {
    let mut server = Server::start("server", None);
    let before = Watched::open(server.ask("grandchild"));
    let guardian = Watched::open(server.guardian());
    rustix::process::pidfd_send_signal(&guardian.pidfd, rustix::process::Signal::KILL).unwrap();
    guardian.expect_death();

    // The answer comes from a server that has a guardian again.
    let after = Watched::open(server.ask("grandchild"));
    assert!(before.is_alive(), "losing the guardian costs no child");
    server.kill();
    before.expect_death();
    after.expect_death();
}

#[test]
fn a_guardian_ends_with_its_server_and_survives_polite_signals() {
    let mut server = Server::start("server", None);
    let ffmpeg = Watched::open(server.ask("leader"));
    let guardian = Watched::open(server.guardian());
    for signal in [
        rustix::process::Signal::TERM,
        rustix::process::Signal::INT,
        rustix::process::Signal::HUP,
    ] {
        rustix::process::pidfd_send_signal(&guardian.pidfd, signal).unwrap();
    }
    Watched::open(server.ask("leader"));
    assert!(guardian.is_alive());
    assert_eq!(
        u32::try_from(guardian.pid.as_raw_nonzero().get()).unwrap(),
        server.guardian()
    );
    server.kill();
    ffmpeg.expect_death();
    guardian.expect_death();
}

#[test]
fn children_that_came_and_went_leave_no_file_thread_or_zombie() {
    let mut server = Server::start("server", None);
    assert_eq!(server.ask("leftovers"), 0);
    server.kill();
}

#[test]
fn a_successor_gets_the_lock_only_once_the_killed_servers_ffmpeg_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("encoder.lock");
    let mut server = Server::start("server", Some(&path));
    let ffmpeg = Watched::open(server.ask("grandchild"));
    assert!(matches!(lock_state(&path).unwrap(), LockState::Held));
    assert!(matches!(LockFile::create(&path), Err(LockError::Held { .. })));

    server.kill();
    ffmpeg.expect_death();
    // The shell above it died by the same signal, and a dead process closes its files a moment after it can be
    // seen to be dead.
    let proof = loop {
        match lock_state(&path).unwrap() {
            LockState::Released(proof) => break proof,
            LockState::Held => std::thread::yield_now(),
            LockState::Absent => panic!("the file is the successor's to remove"),
        }
    };
    assert_eq!(proof.path(), path);
    proof.remove().unwrap();
    assert!(matches!(lock_state(&path).unwrap(), LockState::Absent));
}
