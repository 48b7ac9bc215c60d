//! Whatever ends the process, and whenever, nothing is lost.

use std::os::unix::process::ExitStatusExt;

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

/// The other process of the next story: scans the world that its environment names until it is killed.
#[tokio::test]
async fn a_process_that_scans_until_it_is_killed() {
    let Some(dir) = std::env::var_os("ETHER_TEST_WORLD") else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let location = Location::SqliteFile(Path::new(&dir).join("ether.db"));
    let mut world = World::at(home, &location).await;
    world.options.folders = vec![Path::new(&dir).join("films")];
    world.options.data_dir = Path::new(&dir).join("data");
    let _library = world.start().await;
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_process_that_is_killed_in_the_middle_of_a_scan_loses_nothing() {
    let world = World::new().await;
    for number in 0..400 {
        world.write(&format!("films/{number}.mp4"), &film(number));
    }
    // The tables, so that they can be looked at while the other process fills them.
    let empty = world.path("empty");
    let mut options = world.options.clone();
    options.folders = vec![empty];
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let reader: Arc<dyn MediaReader> = world.reader.clone();
    let looking = Library::start(options, &world.store, reader, clock)
        .await
        .unwrap();
    let mut spec = ether_process::Spec::new(std::env::current_exe().unwrap());
    spec.args(["--exact", "tests::crash::a_process_that_scans_until_it_is_killed"]);
    spec.env("ETHER_TEST_WORLD", world.dir.path()).pass_env("PATH");
    let mut other = world.processes.spawner().spawn(spec).await.unwrap();
    let mut kept = Vec::new();
    while kept.is_empty() {
        tokio::task::yield_now().await;
        kept = items(&looking).await;
    }
    other.kill();
    assert_eq!(other.retired().await.status().signal(), Some(9));
    kept = items(&looking).await;
    assert!(kept.len() < 400, "it was killed too late for this story");
    looking.shutdown().await;
    let library = world.open().await;
    assert_eq!(items(&library).await.len(), 400);
    for item in kept {
        assert!(
            library.item(&Viewer::owner(), &item.id).await.unwrap().is_some(),
            "an item was lost"
        );
    }
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
    until_later(&world, &library, Duration::from_secs(1), || async {
        files(&library).await == ["known.mp4", "new.mp4"]
    })
    .await;
    until(&library, || async { library.status().trouble.is_none() }).await;
    world.close(library).await;
}

/// Writing past the limit raises SIGXFSZ, whose default ends the process; tokio's handler swallows it.
fn ignore_file_size_signal() {
    let kind = tokio::signal::unix::SignalKind::from_raw(25);
    // The handler stays for the rest of the process, also once this is dropped.
    drop(tokio::signal::unix::signal(kind).unwrap());
}
