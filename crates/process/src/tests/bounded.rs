//! Short tools run within their bounds and are gone when the answer comes.

use std::time::Duration;

use super::{on_manual_clock, shell, unguarded};
use crate::{Bounds, RunError};

fn bounds(max_output: usize) -> Bounds {
    Bounds {
        stdin: None,
        max_output,
        deadline: Duration::from_secs(20),
    }
}

#[tokio::test]
async fn a_tool_gives_its_output_and_reads_its_input() {
    let processes = unguarded();
    let input = vec![b'x'; 300_000];
    let bounds = Bounds {
        stdin: Some(input.clone()),
        ..bounds(300_000)
    };
    let output = processes
        .spawner()
        .run_bounded(shell("cat; echo done >&2"), bounds)
        .await
        .unwrap();
    assert_eq!(output.stdout, input);
    assert_eq!(output.stderr, ["done"]);
    processes.shutdown().await;
}

#[tokio::test]
async fn a_tool_may_ignore_its_input() {
    let processes = unguarded();
    let bounds = Bounds {
        stdin: Some(vec![0; 1 << 20]),
        ..bounds(10)
    };
    let output = processes
        .spawner()
        .run_bounded(shell("echo hello"), bounds)
        .await
        .unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

#[tokio::test]
async fn one_byte_too_many_ends_a_tool() {
    let processes = unguarded();
    let fits = processes
        .spawner()
        .run_bounded(shell("printf 12345"), bounds(5))
        .await;
    assert_eq!(fits.unwrap().stdout, b"12345");
    let over = processes
        .spawner()
        .run_bounded(shell("printf 123456; sleep 1000"), bounds(5))
        .await;
    assert!(
        matches!(over, Err(RunError::TooMuchOutput { limit: 5, .. })),
        "{over:?}"
    );
}

#[tokio::test]
async fn the_deadline_ends_a_tool_and_all_that_it_started() {
    let (processes, clock) = on_manual_clock();
    let spawner = processes.spawner();
    let run = tokio::spawn(async move {
        spawner
            .run_bounded(shell("echo busy >&2; sleep 1000 & sleep 1000"), bounds(10))
            .await
    });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(20));
    let error = run.await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::DeadlineExceeded { .. }), "{error:?}");
    processes.shutdown().await;
}

#[tokio::test]
async fn a_failure_carries_status_and_redacted_errors() {
    let processes = unguarded();
    let mut spec = shell("echo partial; echo 'cannot open http://127.0.0.1:9/secret' >&2; exit 4");
    spec.redact(|line| line.replace("/secret", "/…"));
    let error = processes
        .spawner()
        .run_bounded(spec, bounds(100))
        .await
        .unwrap_err();
    let RunError::Failed {
        status,
        stdout,
        stderr,
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(status.code(), Some(4));
    assert_eq!(stdout, b"partial\n");
    assert_eq!(stderr, ["cannot open http://127.0.0.1:9/…"]);
}

#[tokio::test]
async fn a_cancelled_run_leaves_nothing() {
    let (processes, clock) = on_manual_clock();
    let spawner = processes.spawner();
    let run = tokio::spawn(async move { spawner.run_bounded(shell("sleep 1000"), bounds(10)).await });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    run.abort();
    while processes.alive() > 0 {
        tokio::task::yield_now().await;
    }
    processes.shutdown().await;
}
