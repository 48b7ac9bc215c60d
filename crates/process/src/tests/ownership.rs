//! A child belongs to its owner until it is proved gone.

use std::io::{BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use ether_types::SystemClock;
use std::os::unix::process::ExitStatusExt;

use super::roles::guard_command;
use super::{Watched, on_manual_clock, read_pid, shell, unguarded};
use crate::{Config, Guard, LockError, LockFile, LockState, Processes, SpawnError, Spec, lock_state};

#[tokio::test]
async fn a_child_sees_the_environment_and_the_files_it_was_given_and_no_others() {
    // Something open without close-on-exec, as a careless launcher leaves behind.
    let leaked =
        rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let processes = unguarded();
    let mut spec = Spec::new("/bin/sh");
    let extra = spec.output_pipe().unwrap();
    spec.env("GIVEN", "yes").stdout_pipe();
    spec.args([
        "-c",
        "for file in /proc/$$/fd/*; do [ -L $file ] && printf '%s ' $file; done; echo; \
         cat /proc/$$/environ; readlink /proc/$$/fd/0",
    ]);
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut text = String::new();
    child.take_stdout().unwrap().read_to_string(&mut text).unwrap();
    let (files, rest) = text.split_once('\n').unwrap();
    let files: Vec<i32> = files
        .split_whitespace()
        .map(|path| path.rsplit('/').next().unwrap().parse().unwrap())
        .collect();
    let mut expected = vec![0, 1, 2, extra.number()];
    let mut found = files;
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(rest, "GIVEN=yes\0/dev/null\n");
    drop(leaked);
    child.retired().await;
    processes.shutdown().await;
}

/// What tells a child that works from one that only lives.
#[tokio::test]
async fn what_a_child_has_read_and_computed_can_be_seen_while_it_lives() {
    let processes = unguarded();
    let mut spec = Spec::new("/bin/sh");
    let script = "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done; read -r line < /dev/urandom; echo; \
                  kill -STOP $$";
    spec.args(["-c", script]).stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut output = child.take_stdout().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let seen = child.activity().unwrap();
    assert!(
        seen.read > 0 && seen.computed >= Duration::from_millis(20),
        "{seen:?}"
    );
    drop(output);
    child.kill();
    child.retired().await;
    assert_eq!(child.activity(), None);
    processes.shutdown().await;
}

#[tokio::test]
async fn further_pipes_carry_output_apart_from_standard_output() {
    let processes = unguarded();
    let mut spec = Spec::new("/bin/sh");
    let extra = spec.output_pipe().unwrap();
    spec.stdout_pipe();
    spec.args([
        "-c",
        &format!("echo media; echo progress >/proc/$$/fd/{}", extra.number()),
    ]);
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let (mut media, mut progress) = (String::new(), String::new());
    child.take_stdout().unwrap().read_to_string(&mut media).unwrap();
    child
        .take_pipe(extra)
        .unwrap()
        .read_to_string(&mut progress)
        .unwrap();
    assert_eq!((media.as_str(), progress.as_str()), ("media\n", "progress\n"));
    assert!(child.retired().await.status().success());
}

#[tokio::test]
async fn evidence_waits_for_an_output_pipe_that_is_still_held() {
    let processes = unguarded();
    let mut spec = shell("exit 3");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let held = child.take_stdout().unwrap();
    assert_eq!(child.exited().await.code(), Some(3));
    while processes.alive() > 0 {
        tokio::task::yield_now().await;
    }
    // Everything else is proved by now.
    {
        let mut early = std::pin::pin!(child.retired());
        assert!(futures_poll(early.as_mut()).await.is_none());
    }
    drop(held);
    assert_eq!(child.retired().await.status().code(), Some(3));
}

#[tokio::test]
async fn evidence_waits_for_a_stray_that_left_the_group_and_holds_the_output() {
    let processes = unguarded();
    let mut spec = shell("setsid sh -c 'echo $$; exec sleep 1000' & wait");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut stdout = BufReader::new(child.take_stdout().unwrap());
    let stray = Watched::open(read_pid(&mut stdout));
    drop(stdout);
    child.kill();
    assert_eq!(child.exited().await.signal(), Some(9));
    {
        let mut early = std::pin::pin!(child.retired());
        assert!(futures_poll(early.as_mut()).await.is_none());
    }
    assert!(stray.is_alive());
    assert_eq!(processes.alive(), 1, "a stray is not mistaken for gone");
    rustix::process::pidfd_send_signal(&stray.pidfd, rustix::process::Signal::KILL).unwrap();
    child.retired().await;
    processes.shutdown().await;
}

#[tokio::test]
async fn terminate_asks_first_and_kills_the_whole_group_when_the_grace_is_over() {
    let (processes, clock) = on_manual_clock();
    let mut spec = shell("trap '' TERM; sleep 1000 & echo $!; while :; do wait; done");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut stdout = BufReader::new(child.take_stdout().unwrap());
    let grandchild = Watched::open(read_pid(&mut stdout));
    drop(stdout);
    let ending = tokio::spawn(async move { child.terminate(Duration::from_secs(5)).await });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(4));
    tokio::task::yield_now().await;
    assert!(!ending.is_finished());
    clock.advance(Duration::from_secs(1));
    assert_eq!(ending.await.unwrap().status().signal(), Some(9));
    assert!(
        !grandchild.is_alive(),
        "evidence was given while a member of the group lived"
    );
}

#[tokio::test]
async fn terminate_lets_a_polite_child_end_in_its_own_way() {
    let (processes, _clock) = on_manual_clock();
    let mut spec = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut ready = [0; 6];
    child.take_stdout().unwrap().read_exact(&mut ready).unwrap();
    let evidence = child.terminate(Duration::from_secs(5)).await;
    assert_eq!(evidence.status().code(), Some(7));
}

#[tokio::test]
async fn orphans_of_the_group_are_killed_and_reaped_before_evidence_is_given() {
    let processes = unguarded();
    let mut spec = shell("sleep 1000 & echo $!");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut stdout = BufReader::new(child.take_stdout().unwrap());
    let orphan = read_pid(&mut stdout);
    drop(stdout);
    child.retired().await;
    assert!(
        !std::path::Path::new(&format!("/proc/{orphan}")).exists(),
        "not even a zombie is left"
    );
}

#[tokio::test]
async fn a_dropped_child_is_killed_and_shutdown_waits_for_it() {
    let processes = unguarded();
    let mut spec = shell("sleep 1000 & echo $!; wait");
    spec.stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut stdout = BufReader::new(child.take_stdout().unwrap());
    let grandchild = Watched::open(read_pid(&mut stdout));
    let leader = Watched::open(child.id());
    drop(stdout);
    drop(child);
    processes.shutdown().await;
    assert!(!leader.is_alive() && !grandchild.is_alive());
    assert_eq!(processes.alive(), 0);
    let refused = processes.spawner().spawn(shell("true")).await;
    assert!(matches!(refused, Err(SpawnError::ShuttingDown)));
    processes.shutdown().await;
}

#[tokio::test]
async fn shutdown_ends_children_whose_handles_are_still_held() {
    let processes = unguarded();
    let mut child = processes.spawner().spawn(shell("sleep 1000")).await.unwrap();
    processes.shutdown().await;
    assert_eq!(child.retired().await.status().signal(), Some(9));
}

#[tokio::test]
async fn a_child_that_is_started_for_nobody_is_killed() {
    let processes = unguarded();
    let spawner = processes.spawner();
    {
        let mut asked = std::pin::pin!(spawner.spawn(shell("sleep 1000")));
        assert!(futures_poll(asked.as_mut()).await.is_none());
    }
    // It does not last the thousand seconds: someone killed it, and its keeper saw it go.
    while processes.alive() > 0 {
        tokio::task::yield_now().await;
    }
    processes.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("not a program");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let processes = unguarded();
    let spawner = processes.spawner();
    for missing in ["/nonexistent/ffmpeg", "no-such-program-anywhere"] {
        let error = spawner.spawn(Spec::new(missing)).await.unwrap_err();
        assert!(matches!(error, SpawnError::NotFound { .. }), "{error:?}");
        assert!(error.to_string().contains(missing));
    }
    let error = spawner.spawn(Spec::new(&plain)).await.unwrap_err();
    assert!(matches!(error, SpawnError::NotExecutable { .. }), "{error:?}");
    assert_eq!(processes.alive(), 0, "a start that failed holds no place");
}

#[tokio::test]
async fn no_more_children_live_than_allowed() {
    let config = Config {
        max_children: 1,
        ..Config::unguarded(Arc::new(SystemClock::new()))
    };
    let processes = Processes::start(config).unwrap();
    let mut first = processes.spawner().spawn(shell("sleep 1000")).await.unwrap();
    let second = processes.spawner().spawn(shell("true")).await;
    assert!(matches!(second, Err(SpawnError::TooMany { limit: 1 })));
    first.kill();
    first.retired().await;
    while processes.alive() > 0 {
        tokio::task::yield_now().await;
    }
    processes.spawner().spawn(shell("true")).await.unwrap();
}

#[tokio::test]
async fn the_lock_is_held_by_the_child_and_its_file_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let processes = unguarded();
    let mut spec = shell("sleep 1000");
    spec.hold(LockFile::create(&path).unwrap());
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    assert!(matches!(lock_state(&path).unwrap(), LockState::Held));
    child.kill();
    child.retired().await;
    assert!(!path.exists());
}

#[test]
fn a_lock_is_never_made_through_a_link_or_on_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
    for path in [link.as_path(), dir.path()] {
        assert!(matches!(LockFile::create(path), Err(LockError::NotAFile { .. })));
    }
    assert!(!dir.path().join("elsewhere").exists());
}

#[tokio::test]
async fn limits_reach_the_child() {
    let processes = unguarded();
    let mut spec = shell(
        "ulimit -c; ulimit -v; nice; cat /proc/$$/oom_score_adj; grep NoNewPrivs /proc/$$/status | tr -d '\\t'",
    );
    spec.nice(7)
        .oom_score_adj(333)
        .address_space(512 * 1024 * 1024)
        .stdout_pipe();
    let mut child = processes.spawner().spawn(spec).await.unwrap();
    let mut text = String::new();
    child.take_stdout().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "0\n524288\n7\n333\nNoNewPrivs:1\n");
}

#[tokio::test]
async fn the_guardian_forgets_what_has_ended_and_what_never_began() {
    let config = Config {
        guard: Guard::Command(guard_command()),
        ..Config::unguarded(Arc::new(SystemClock::new()))
    };
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("not a program");
    std::fs::write(&plain, "text").unwrap();
    let processes = Processes::start(config).unwrap();
    let spawner = processes.spawner();
    for _ in 0..8 {
        let mut child = spawner.spawn(shell("exit 0")).await.unwrap();
        child.retired().await;
        spawner.spawn(Spec::new("/nonexistent")).await.unwrap_err();
        spawner.spawn(Spec::new(&plain)).await.unwrap_err();
    }
    let mut last = spawner.spawn(shell("sleep 1000")).await.unwrap();
    // Each guarded child is one pidfd in the guardian. It has handled every message sent before the last one
    // that it answered.
    let guardian = spawner.registry.guardian_pid().unwrap();
    let guarded = std::fs::read_dir(format!("/proc/{guardian}/fd"))
        .unwrap()
        .filter(|file| {
            std::fs::read_link(file.as_ref().unwrap().path())
                .is_ok_and(|target| target.to_string_lossy().contains("pidfd"))
        })
        .count();
    assert_eq!(guarded, 1);
    last.kill();
    last.retired().await;
    processes.shutdown().await;
    assert!(
        !std::path::Path::new(&format!("/proc/{guardian}")).exists(),
        "the guardian was reaped"
    );
}

/// Polls once, and says what came of it.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
