//! Whatever ends the process, and whenever, nothing is lost.

use super::*;

#[tokio::test]
async fn a_scan_that_is_cut_off_goes_on_where_it_was() {
    let world = World::new().await;
    for number in 0..200 {
        world.write(&format!("films/{number}.mp4"), &film(number));
    }
    let library = world.start().await;
    let mut status = library.subscribe();
    let half = status
        .wait_for(|status| status.progress.done >= 100)
        .await
        .unwrap()
        .progress
        .done;
    world.reader.shut();
    library.shutdown().await;
    let kept = items(&library).await;
    assert!(!kept.is_empty(), "a long scan must not be lost whole");
    assert!(
        kept.len() < 200,
        "the scan was over too soon for this story ({half} were done)"
    );
    drop(library);
    world.reader.open();
    let reads = world.reader.reads();
    let library = world.open().await;
    assert_eq!(items(&library).await.len(), 200);
    assert!(
        world.reader.reads() - reads <= 200 - kept.len() + 2,
        "what was kept is not read again"
    );
    for item in kept {
        assert!(
            library.item(&Viewer::owner(), &item.id).await.unwrap().is_some(),
            "an item was lost"
        );
    }
    world.close(library).await;
}

#[tokio::test]
async fn a_library_that_is_dropped_in_the_middle_of_everything_opens_again() {
    let world = World::new().await;
    for number in 0..30 {
        world.write(&format!("films/{number}.mp4"), &film(number));
    }
    for round in 1..8 {
        // Without any goodbye, at another point of the scan each time.
        let library = world.start().await;
        let mut status = library.subscribe();
        let _ = status
            .wait_for(|status| status.progress.done >= round * 4)
            .await
            .unwrap();
        drop(library);
    }
    let library = world.open().await;
    assert_eq!(items(&library).await.len(), 30);
    let mut ids: Vec<_> = items(&library).await.into_iter().map(|item| item.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 30);
    world.close(library).await;
}

#[tokio::test]
async fn a_full_disk_stops_nothing_and_the_scan_is_made_up_for() {
    let world = World::new().await;
    world.write("films/known.mp4", &film(1));
    let library = world.open().await;
    until(&library, || async { !library.status().chores }).await;
    world.write("films/new.mp4", &film(2));
    // No file of this process may grow beyond what the database has: what a full disk does to it.
    let limit = |bytes: Option<u64>| {
        let limit = rustix::process::Rlimit {
            current: bytes,
            maximum: rustix::process::getrlimit(rustix::process::Resource::Fsize).maximum,
        };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    };
    ignore_file_size_signal();
    limit(Some(1));
    rescan(&library).await;
    assert!(library.status().trouble.is_some());
    assert_eq!(
        files(&library).await,
        ["known.mp4"],
        "what is known still answers"
    );
    limit(None);
    // The library tries again by itself.
    {
        let found = until(&library, || async {
            files(&library).await == ["known.mp4", "new.mp4"]
        });
        tokio::pin!(found);
        loop {
            tokio::select! {
                biased;
                () = &mut found => break,
                () = tokio::task::yield_now() => world.clock.advance(Duration::from_secs(1)),
            }
        }
    }
    until(&library, || async { library.status().trouble.is_none() }).await;
    world.close(library).await;
}

/// Writing past the limit raises SIGXFSZ, whose default ends the process; tokio's handler swallows it.
fn ignore_file_size_signal() {
    let kind = tokio::signal::unix::SignalKind::from_raw(25);
    // The handler stays for the rest of the process, also once this is dropped.
    drop(tokio::signal::unix::signal(kind).unwrap());
}
