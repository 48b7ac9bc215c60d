//! What a scan finds, whatever people and programs put into a folder.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

#[tokio::test]
async fn a_folder_of_films_becomes_a_shelf() {
    let world = World::new().await;
    world.write("films/Part 10.mp4", &film(10));
    world.write("films/Part 2.mp4", &film(2));
    world.write("films/deep/er/The.Film.2010.1080p.mkv", MATROSKA);
    world.write("films/stream", TRANSPORT);
    world.write("films/song.flac", SONG);
    let library = world.open().await;
    let shelf = items(&library).await;
    let titles: Vec<&str> = shelf.iter().map(|item| item.title.as_str()).collect();
    assert_eq!(titles, ["Part 2", "Part 10", "song", "stream", "The Film (2010)"]);
    let two = &shelf[0];
    assert_eq!((two.width, two.height), (Some(96), Some(54)));
    assert_eq!(
        (two.video.as_deref(), two.audio.as_deref()),
        (Some("h264"), Some("aac"))
    );
    assert_eq!(two.kind, Kind::Film);
    assert!((1_900..2_200).contains(&two.duration_ms.unwrap()));
    assert_eq!(shelf[2].kind, Kind::Music);
    assert_eq!(shelf[4].container, "matroska");
    let detail = library.detail(&Viewer::owner(), &two.id).await.unwrap();
    assert_eq!(detail.path, world.path("films/Part 2.mp4"));
    assert!(detail.facts.keyframes.is_some());
    let status = library.status();
    assert_eq!((status.progress.seen, status.progress.done), (5, 5));
    assert!(!status.scanning && status.trouble.is_none());
    world.close(library).await;
}

#[tokio::test]
async fn names_of_every_kind_are_found_opened_and_survive_a_restart() {
    let world = World::new().await;
    let hostile: [&[u8]; 9] = [
        b"with space.mp4",
        b"it's \"quoted\".mp4",
        b"100%25.mp4",
        b"two\nlines.mp4",
        b"-rf.mp4",
        b"caf\xe9.mp4",
        b"%00.mp4",
        "ünïcødé 映画 🎬.mp4".as_bytes(),
        b"$(reboot); `id` \\.mp4",
    ];
    for (number, name) in hostile.iter().enumerate() {
        std::fs::write(
            world.path("films").join(OsStr::from_bytes(name)),
            film(number as u32),
        )
        .unwrap();
    }
    let library = world.open().await;
    let shelf = items(&library).await;
    assert_eq!(shelf.len(), hostile.len());
    for item in &shelf {
        assert!(
            !item.title.contains('\n') && !item.file.contains('\n'),
            "{item:?}"
        );
    }
    library.shutdown().await;
    let reads = world.reader.reads();
    let library = world.open().await;
    let again = items(&library).await;
    assert_eq!(
        again.iter().map(|i| &i.id).collect::<Vec<_>>(),
        shelf.iter().map(|i| &i.id).collect::<Vec<_>>()
    );
    assert_eq!(world.reader.reads(), reads, "nothing is read twice");
    let mut paths = Vec::new();
    for item in &shelf {
        paths.push(library.open(&item.id).await.unwrap().path);
    }
    for name in hostile {
        assert!(
            paths.contains(&world.path("films").join(OsStr::from_bytes(name))),
            "{name:?}"
        );
    }
    world.close(library).await;
}

#[tokio::test]
async fn what_is_no_film_is_listed_with_its_reason_and_stops_nothing() {
    let world = World::new().await;
    world.write("films/good.mp4", &film(1));
    world.write("films/notes.txt", b"buy milk");
    world.write("films/lies.mp4", &b"this is not a film ".repeat(100));
    world.write("films/empty.mkv", b"");
    world.write("films/tiny.mkv", b"tiny");
    world.write("films/cut.mp4", &FILM[..2000]);
    world.write("films/good.en.srt", b"1\n00:00:01,000 --> 00:00:02,000\nHello\n");
    world.write("films/poster.jpg", &[0xff; 4000]);
    world.write("films/.hidden.mp4", &film(2));
    world.write("films/.git/film.mp4", &film(3));
    world.write("films/coming.mp4.part", &film(4));
    let films = world.path("films");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        films.join("pipe.mp4"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(films.join("socket.mp4")).unwrap();
    symlink("nowhere", films.join("broken-link.mp4")).unwrap();
    symlink("loop.mp4", films.join("loop.mp4")).unwrap();
    symlink(".", films.join("circle")).unwrap();
    symlink("good.mp4", films.join("twin.mp4")).unwrap();
    symlink(films.join("good.mp4"), films.join("absolute-twin.mp4")).unwrap();
    world.write("outside/secret.mp4", &film(5));
    symlink(world.path("outside/secret.mp4"), films.join("escape.mp4")).unwrap();
    symlink(world.path("outside"), films.join("escape")).unwrap();
    let library = world.open().await;
    assert_eq!(files(&library).await, ["good.mp4"]);
    for (file, code) in [
        ("notes.txt", Some("not-media")),
        ("lies.mp4", Some("not-media")),
        ("empty.mkv", Some("empty")),
        ("tiny.mkv", Some("too-small")),
        ("cut.mp4", Some("broken")),
        ("pipe.mp4", Some("special-file")),
        ("socket.mp4", Some("special-file")),
        ("broken-link.mp4", Some("broken-link")),
        ("loop.mp4", Some("link-loop")),
        ("escape.mp4", Some("link-outside")),
        ("escape", Some("link-outside")),
        ("good.en.srt", None),
        ("poster.jpg", None),
        (".hidden.mp4", None),
        ("twin.mp4", None),
        ("absolute-twin.mp4", None),
        ("circle", None),
        ("coming.mp4.part", None),
    ] {
        assert_eq!(problem(&library, file).await, code, "{file}");
    }
    assert_eq!(library.status().progress.sidecars, 2);
    let reads = world.reader.reads();
    let version = library.status().version;
    rescan(&library).await;
    assert_eq!(
        world.reader.reads(),
        reads,
        "what did not change is not read again"
    );
    assert_eq!(library.status().version, version, "and nothing is written");
    std::fs::write(films.join("lies.mp4"), film(6)).unwrap();
    std::fs::remove_file(films.join("notes.txt")).unwrap();
    std::fs::remove_file(films.join("pipe.mp4")).unwrap();
    rescan(&library).await;
    assert_eq!(files(&library).await, ["good.mp4", "lies.mp4"]);
    for mended in ["lies.mp4", "notes.txt", "pipe.mp4"] {
        assert_eq!(problem(&library, mended).await, None, "{mended}");
    }
    world.close(library).await;
}

/// Takes from this thread, and from those it starts, what lets root read everything.
fn respect_permissions() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    let above = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    sets.effective.remove(above);
    sets.permitted.remove(above);
    sets.inheritable.remove(above);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn what_may_not_be_read_is_reported_and_what_is_known_of_it_is_kept() {
    respect_permissions();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new().await;
        let locked = world.path("films/locked");
        world.write("films/locked/film.mp4", &film(1));
        world.write("films/locked/deep/er/film.mp4", &film(2));
        let secret = world.write("films/secret.mp4", &film(3));
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&secret, 0o000);
        let library = world.open().await;
        assert_eq!(problem(&library, "secret.mp4").await, Some("permission-denied"));
        let known = ["locked/deep/er/film.mp4", "locked/film.mp4"];
        assert_eq!(files(&library).await, known);
        mode(&locked, 0o000);
        let version = library.status().version;
        for _ in 0..2 {
            rescan(&library).await;
            assert_eq!(files(&library).await, known);
            assert_eq!(problem(&library, "locked").await, Some("permission-denied"));
        }
        assert_eq!(
            library.status().version,
            version + 1,
            "the second scan writes nothing"
        );
        let id = item(&library, "locked/film.mp4").await.id;
        assert!(matches!(
            library.open(&id).await,
            Err(OpenError::Unreadable { .. })
        ));
        // The owner mends it; a change of permissions changes no time of the file.
        mode(&locked, 0o755);
        mode(&secret, 0o644);
        rescan(&library).await;
        assert_eq!(problem(&library, "locked").await, None);
        assert_eq!(problem(&library, "secret.mp4").await, None);
        assert_eq!(files(&library).await.len(), 3);
        // A film that is changed and closed at once is not forgotten either.
        world.write("films/locked/film.mp4", &film(9));
        mode(&world.path("films/locked/film.mp4"), 0o000);
        rescan(&library).await;
        assert_eq!(item(&library, "locked/film.mp4").await.id, id);
        mode(&world.path("films"), 0o000);
        rescan(&library).await;
        assert_eq!(
            library.status().folders[0].state,
            FolderState::Unreadable(Reason::PermissionDenied)
        );
        assert_eq!(files(&library).await.len(), 3);
        mode(&world.path("films"), 0o755);
        world.close(library).await;
    });
}

#[tokio::test]
async fn a_file_that_is_still_being_written_is_read_once_it_rests() {
    let world = World::new().await;
    let path = world.write("films/growing.mp4", &FILM[..3000]);
    let modified = |at: ether_types::Timestamp| {
        let at = std::time::UNIX_EPOCH + Duration::from_micros(at.as_micros().unsigned_abs());
        std::fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(at)
            .unwrap();
    };
    modified(world.clock.now());
    let library = world.open().await;
    assert_eq!(problem(&library, "growing.mp4").await, Some("being-written"));
    assert_eq!((world.reader.reads(), library.status().restless), (0, 1));
    // It grows, at two seconds of the three that count as rest.
    while world.clock.sleepers() < 2 {
        tokio::task::yield_now().await;
    }
    world.clock.advance(Duration::from_secs(2));
    std::fs::write(&path, film(1)).unwrap();
    modified(world.clock.now());
    rescan(&library).await;
    assert_eq!((world.reader.reads(), library.status().restless), (0, 1));
    // It rests; nobody asks for a scan.
    until_later(&world, &library, Duration::from_millis(100), || async {
        files(&library).await == ["growing.mp4"]
    })
    .await;
    assert_eq!(world.reader.reads(), 1);
    assert_eq!(problem(&library, "growing.mp4").await, None);
    world.close(library).await;
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_not_believed() {
    let world = World::new().await;
    let path = world.write("films/film.mp4", &film(1));
    world.reader.shut();
    let library = world.start().await;
    world.reader.holding(1).await;
    std::fs::write(&path, film(2)).unwrap();
    world.reader.open();
    library.finished(1).await;
    assert!(items(&library).await.is_empty());
    assert_eq!(problem(&library, "film.mp4").await, Some("being-written"));
    rescan(&library).await;
    assert_eq!(files(&library).await, ["film.mp4"]);
    world.close(library).await;
}

#[tokio::test]
async fn a_better_reader_reads_everything_again_and_keeps_the_items() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    world.write("films/lies.mp4", &b"not yet a film ".repeat(100));
    let library = world.open().await;
    let before = item(&library, "film.mp4").await;
    let stamp = library
        .detail(&Viewer::owner(), &before.id)
        .await
        .unwrap()
        .changestamp;
    library.shutdown().await;
    let reads = world.reader.reads();
    world.reader.version.fetch_add(1, Ordering::SeqCst);
    let library = world.open().await;
    assert_eq!(world.reader.reads(), reads + 2);
    let after = library.detail(&Viewer::owner(), &before.id).await.unwrap();
    assert_eq!(after.changestamp, stamp, "the bytes are the same");
    rescan(&library).await;
    assert_eq!(world.reader.reads(), reads + 2);
    world.close(library).await;
}

#[tokio::test]
async fn a_better_reader_that_fails_takes_nothing_away() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    library.shutdown().await;
    world.reader.version.fetch_add(1, Ordering::SeqCst);
    world.reader.slow.store(true, Ordering::SeqCst);
    let library = world.open().await;
    assert_eq!(item(&library, "film.mp4").await.id, id);
    assert!(library.detail(&Viewer::owner(), &id).await.is_ok());
    let reads = world.reader.reads();
    world.reader.slow.store(false, Ordering::SeqCst);
    rescan(&library).await;
    assert_eq!(
        world.reader.reads(),
        reads + 1,
        "it is read by the better reader when that can"
    );
    world.close(library).await;
}

#[tokio::test]
async fn a_reading_that_timed_out_is_tried_again_ever_more_rarely() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    world.reader.slow.store(true, Ordering::SeqCst);
    let library = world.open().await;
    assert_eq!(problem(&library, "film.mp4").await, Some("timed-out"));
    let mut tries = Vec::new();
    for _ in 0..20 {
        let before = world.reader.reads();
        world.clock.advance(Duration::from_secs(10 * 60));
        rescan(&library).await;
        tries.push(world.reader.reads() - before);
    }
    assert_eq!(tries.iter().sum::<usize>(), 4, "{tries:?}");
    assert_eq!(tries[..3], [1, 0, 1]);
    world.reader.slow.store(false, Ordering::SeqCst);
    world.clock.advance(Duration::from_secs(86_400));
    rescan(&library).await;
    assert_eq!(files(&library).await, ["film.mp4"]);
    world.close(library).await;
}

#[tokio::test]
async fn readers_that_close_before_the_library_take_nothing_away() {
    let world = World::new().await;
    let path = world.write("films/song.flac", SONG);
    let library = world.open().await;
    let _ = world.processes.shutdown().await;
    std::fs::write(&path, &SONG[..15_000]).unwrap();
    rescan(&library).await;
    assert_eq!(files(&library).await, ["song.flac"]);
    assert_eq!(problem(&library, "song.flac").await, None);
    // And the library goes on for what needs no process.
    world.write("films/film.mp4", &film(1));
    rescan(&library).await;
    assert_eq!(files(&library).await, ["film.mp4", "song.flac"]);
    world.close(library).await;
}

#[tokio::test]
async fn a_folder_whose_own_name_is_no_text_works_as_any_other() {
    let mut world = World::new().await;
    let folder = world.dir.path().join(OsStr::from_bytes(b"f\xfflms 100%\n"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("film.mp4"), film(1)).unwrap();
    world.options.folders = vec![folder.clone()];
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    assert_eq!(library.open(&id).await.unwrap().path, folder.join("film.mp4"));
    assert!(library.status().folders[0].path.ends_with("f\\xfflms 100%\\n"));
    library.shutdown().await;
    let library = world.open().await;
    assert_eq!(item(&library, "film.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn one_folder_inside_another_is_walked_once_and_one_given_twice_is_reported() {
    let mut world = World::new().await;
    world.write("films/series/one.mp4", &film(1));
    world.write("films/two.mp4", &film(2));
    symlink(world.path("films"), world.path("alias")).unwrap();
    for name in ["films/series", "films/", "alias"] {
        world.options.folders.push(world.path(name));
    }
    let library = world.open().await;
    assert_eq!(files(&library).await, ["one.mp4", "two.mp4"]);
    let states: Vec<FolderState> = library.status().folders.into_iter().map(|f| f.state).collect();
    let films = world.path("films").display().to_string();
    assert_eq!(
        states,
        [
            FolderState::Present,
            FolderState::Present,
            FolderState::Duplicate(films)
        ]
    );
    rescan(&library).await;
    assert_eq!(files(&library).await, ["one.mp4", "two.mp4"]);
    world.close(library).await;
}

#[tokio::test]
async fn thousands_of_files_are_scanned_a_few_at_a_time() {
    let world = World::new().await;
    for dir in 0..30 {
        let dir_path = world.path(&format!("films/{dir}"));
        std::fs::create_dir(&dir_path).unwrap();
        for number in 0..100 {
            std::fs::write(dir_path.join(format!("{number}.mp4")), film(dir * 100 + number)).unwrap();
        }
    }
    let library = world.start().await;
    let held = world.reader.held.clone();
    let mut most = held.subscribe();
    let watching = tokio::spawn(async move {
        let mut worst = 0;
        while most.changed().await.is_ok() {
            worst = worst.max(*most.borrow_and_update());
            if worst > 2 {
                break;
            }
        }
        worst
    });
    library.finished(1).await;
    assert_eq!(items(&library).await.len(), 3_000);
    assert_eq!(library.status().progress.done, 3_000);
    assert!(
        !watching.is_finished(),
        "more were read at once than the two allowed"
    );
    watching.abort();
    world.close(library).await;
}

#[tokio::test]
async fn what_ether_writes_itself_is_no_film_of_anybody() {
    let mut world = World::new().await;
    world.options.data_dir = world.path("films/ether data");
    world.write("films/ether data/scratch/segment.mp4", &film(1));
    world.write("films/film.mp4", &film(2));
    let library = world.open().await;
    assert_eq!(files(&library).await, ["film.mp4"]);
    world.close(library).await;
}

/// Where the real films are, if they are on this machine.
fn real_media() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/media");
    let path = std::env::var_os("ETHER_MEDIA").map_or_else(beside, PathBuf::from);
    match path.is_dir() {
        true => Some(path),
        false => {
            println!("skipped: no real films (ETHER_MEDIA)");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_real_film_is_an_item_with_a_picture_or_says_why_not() {
    let Some(media) = real_media() else { return };
    let mut world = World::new().await;
    world.options.folders = vec![media];
    let library = world.open().await;
    let (problems, _) = library.problems(10_000).await.unwrap();
    let documents = problems
        .iter()
        .filter(|p| matches!(p.reason, Reason::OtherDocument { .. }))
        .count();
    let shelf = items(&library).await;
    let status = library.status();
    assert_eq!(
        status.progress.seen as usize,
        shelf.len() + problems.len() - documents
    );
    for problem in &problems {
        println!("{}: {}", problem.file, problem.reason);
        assert!(
            !matches!(
                problem.reason,
                Reason::Failed { .. } | Reason::TimedOut | Reason::FfprobeMissing
            ),
            "{problem:?}"
        );
    }
    for item in &shelf {
        assert!(
            item.duration_ms.is_some() || !item.warnings.is_empty(),
            "{item:?}"
        );
    }
    until(&library, || async {
        items(&library)
            .await
            .iter()
            .all(|item| item.picture != PictureState::Wanted)
    })
    .await;
    for item in items(&library).await {
        if item.picture == PictureState::Failed {
            let why = library.picture(&item.id).await.unwrap_err();
            println!("{}: {why}", item.file);
            assert!(item.kind == Kind::Music, "{}: {why}", item.file);
        }
    }
    world.close(library).await;
}
