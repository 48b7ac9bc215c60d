//! Folders and disks that go away, and come back.

use super::*;

/// A filesystem in memory, mounted at a directory; unmounted when dropped. `None` where this machine does not
/// allow it.
struct Mount {
    at: PathBuf,
    processes: Processes,
}

impl Mount {
    async fn new(at: &Path) -> Option<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let processes = Processes::start(Config::unguarded(clock)).unwrap();
        let mut spec = ether_process::Spec::new("mount");
        spec.args(["-t", "tmpfs", "-o", "size=1m", "ether-test"]).arg(at);
        if run(&processes, spec).await {
            return Some(Self {
                at: at.to_owned(),
                processes,
            });
        }
        println!("skipped: nothing can be mounted here");
        None
    }

    async fn unmount(self) {
        let mut spec = ether_process::Spec::new("umount");
        spec.arg("-l").arg(&self.at);
        assert!(run(&self.processes, spec).await);
        let _ = self.processes.shutdown().await;
    }
}

async fn run(processes: &Processes, spec: ether_process::Spec) -> bool {
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 10_000,
        deadline: Duration::from_secs(10),
    };
    processes.spawner().run_bounded(spec, bounds).await.is_ok()
}

#[tokio::test]
async fn a_folder_that_vanishes_is_reported_and_empties_nothing() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    std::fs::rename(world.path("films"), world.path("away")).unwrap();
    rescan(&library).await;
    assert_eq!(library.status().folders[0].state, FolderState::Missing);
    assert_eq!(item(&library, "film.mp4").await.id, id);
    assert!(matches!(
        library.open(&id).await,
        Err(OpenError::FolderMissing { .. })
    ));
    // An empty directory in its place, as an unmounted share leaves it, is not the folder.
    std::fs::create_dir(world.path("films")).unwrap();
    rescan(&library).await;
    assert_eq!(library.status().folders[0].state, FolderState::Doubtful);
    // Neither is one that somebody began to fill meanwhile, now or later.
    world.write("films/other.mp4", &film(2));
    rescan(&library).await;
    rescan(&library).await;
    assert_eq!(library.status().folders[0].state, FolderState::Doubtful);
    assert_eq!(files(&library).await, ["film.mp4"]);
    std::fs::remove_dir_all(world.path("films")).unwrap();
    std::fs::rename(world.path("away"), world.path("films")).unwrap();
    rescan(&library).await;
    assert_eq!(library.status().folders[0].state, FolderState::Present);
    assert_eq!(item(&library, "film.mp4").await.id, id);
    assert!(library.open(&id).await.is_ok());
    world.close(library).await;
}

#[tokio::test]
async fn a_folder_that_was_never_there_is_no_error_and_is_found_when_it_comes() {
    let mut world = World::new().await;
    world.options.folders = vec![world.path("later")];
    let library = world.open().await;
    assert_eq!(library.status().folders[0].state, FolderState::Missing);
    world.write("later/film.mp4", &film(1));
    rescan(&library).await;
    assert_eq!(files(&library).await, ["film.mp4"]);
    world.close(library).await;
}

#[tokio::test]
async fn a_folder_restored_from_a_backup_is_recognized_by_what_is_in_it() {
    let world = World::new().await;
    let one = world.write("films/one.mp4", &film(1));
    world.write("films/two.mp4", &film(2));
    let library = world.open().await;
    let id = item(&library, "one.mp4").await.id;
    // The same files with their times in another directory; one of them did not make it.
    let modified = std::fs::metadata(&one).unwrap().modified().unwrap();
    let copy = world.write("restored/one.mp4", &film(1));
    std::fs::File::options()
        .append(true)
        .open(copy)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    std::fs::rename(world.path("films"), world.path("broken disk")).unwrap();
    std::fs::rename(world.path("restored"), world.path("films")).unwrap();
    rescan(&library).await;
    assert_eq!(library.status().folders[0].state, FolderState::Present);
    assert_eq!(files(&library).await, ["one.mp4"]);
    assert_eq!(item(&library, "one.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn the_owner_can_say_that_another_directory_is_the_right_one() {
    let world = World::new().await;
    world.write("films/old.mp4", &film(1));
    let library = world.open().await;
    std::fs::rename(world.path("films"), world.path("away")).unwrap();
    world.write("films/new.mp4", &film(2));
    rescan(&library).await;
    assert_eq!(files(&library).await, ["old.mp4"]);
    let request = library.accept_folder(0).await.unwrap().unwrap();
    library.finished(request).await;
    assert_eq!(files(&library).await, ["new.mp4"]);
    assert_eq!(library.accept_folder(7).await.unwrap(), None);
    world.close(library).await;
}

#[tokio::test]
async fn a_folder_that_is_not_given_any_more_is_hidden_and_comes_back_whole() {
    let mut world = World::new().await;
    world.write("films/film.mp4", &film(1));
    world.write("songs/song.flac", SONG);
    world.options.folders.push(world.path("songs"));
    let library = world.open().await;
    let id = item(&library, "song.flac").await.id;
    library
        .set_position(&Viewer::owner(), &id, 9, None)
        .await
        .unwrap();
    library.shutdown().await;
    let songs = world.options.folders.pop().unwrap();
    let library = world.open().await;
    assert_eq!(files(&library).await, ["film.mp4"]);
    library.shutdown().await;
    world.options.folders.push(songs);
    let library = world.start().await;
    let back = item(&library, "song.flac").await;
    assert_eq!((back.id, back.position_ms), (id, 9));
    world.close(library).await;
}

#[tokio::test]
async fn a_film_goes_along_when_its_folder_is_given_under_another_path() {
    let mut world = World::new().await;
    world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    library.shutdown().await;
    std::fs::rename(world.path("films"), world.path("cinema")).unwrap();
    world.options.folders = vec![world.path("cinema")];
    let library = world.open().await;
    assert_eq!(item(&library, "film.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn an_unmounted_disk_keeps_its_films_whether_it_is_the_folder_or_lies_in_it() {
    for inside in [false, true] {
        let world = World::new().await;
        let at = if inside {
            world.path("films/disk")
        } else {
            world.path("films")
        };
        std::fs::create_dir_all(&at).unwrap();
        let Some(mount) = Mount::new(&at).await else {
            return;
        };
        std::fs::write(at.join("film.mp4"), film(1)).unwrap();
        std::fs::write(at.join("gone.mp4"), film(2)).unwrap();
        if inside {
            world.write("films/home.mp4", &film(3));
        }
        let library = world.open().await;
        std::fs::remove_file(at.join("gone.mp4")).unwrap();
        rescan(&library).await;
        let before = files(&library).await;
        assert_eq!(
            before.len(),
            if inside { 2 } else { 1 },
            "what is deleted on a mounted disk is gone"
        );
        mount.unmount().await;
        rescan(&library).await;
        rescan(&library).await;
        assert_eq!(files(&library).await, before);
        let film = before.iter().find(|file| file.ends_with("film.mp4")).unwrap();
        let id = item(&library, film).await.id;
        assert!(matches!(
            library.open(&id).await,
            Err(OpenError::FolderMissing { .. } | OpenError::Gone { .. })
        ));
        if inside {
            assert_eq!(problem(&library, "disk").await, Some("not-mounted"));
            // Ejecting may take the empty directory along.
            std::fs::remove_dir(&at).unwrap();
            rescan(&library).await;
            assert_eq!(files(&library).await, before);
            assert_eq!(problem(&library, "disk").await, Some("not-mounted"));
            std::fs::create_dir(&at).unwrap();
        } else {
            assert_eq!(library.status().folders[0].state, FolderState::Doubtful);
        }
        let mount = Mount::new(&at).await.unwrap();
        let back = at.join("film.mp4");
        std::fs::write(&back, super::film(1)).unwrap();
        rescan(&library).await;
        if inside {
            assert_eq!(problem(&library, "disk").await, None);
            assert_eq!(item(&library, film).await.id, id);
        }
        mount.unmount().await;
        world.close(library).await;
    }
}
