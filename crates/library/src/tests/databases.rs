//! The same library on SQLite and PostgreSQL, and with many items.

use ether_testkit::postgres::{Durability, Server};

use super::*;

#[tokio::test]
async fn the_library_lives_on_postgresql_as_on_sqlite() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let location: Location = server.fresh_schema().parse().unwrap();
    let mut world = World::at(tempfile::tempdir().unwrap(), &location).await;
    world.options.folders.push(world.path("songs"));
    let paths = ["films/Part 10.mp4", "films/Part 2.mp4", "films/a/[b] 100%.mp4"];
    for (number, path) in paths.iter().enumerate() {
        world.write(path, &film(number as u32));
    }
    // Longer than a PostgreSQL index takes, and not compressible.
    let deep: String = (0_u32..14)
        .map(|level| {
            let letter = |at: u32| {
                char::from(
                    b'a' + (level * 7919 + at * at * 31 + at * 17)
                        .wrapping_mul(2_654_435_761)
                        .to_be_bytes()[0]
                        % 26,
                )
            };
            (0..200).map(letter).collect::<String>() + "/"
        })
        .collect();
    let deep = format!("{deep}deep.mp4");
    let long = world.write(&format!("films/{deep}"), &film(77));
    world.write("songs/song.flac", SONG);
    world.write("films/notes.txt", b"buy milk");
    world.write("films/lies.mp4", &b"no film at all ".repeat(100));
    let library = world.open().await;
    let viewer = Viewer::owner();
    let mut titles = Vec::new();
    let mut after = None;
    loop {
        let page = library.list(&viewer, after.as_ref(), 1).await.unwrap();
        after = page.items.last().map(|item| item.id.clone());
        titles.extend(page.items.into_iter().map(|item| item.title));
        if !page.more {
            break;
        }
    }
    assert_eq!(titles, ["[b] 100%", "deep", "Part 2", "Part 10", "song"]);
    let id = item(&library, &deep).await.id;
    assert_eq!(library.open(&id).await.unwrap().path, long);
    std::fs::remove_file(long).unwrap();
    assert_eq!(library.problems(10).await.unwrap().1, 2);
    let two = item(&library, "Part 2.mp4").await.id;
    let ten = item(&library, "Part 10.mp4").await.id;
    assert!(library.set_position(&viewer, &two, 42, Some(true)).await.unwrap());
    assert!(library.set_position(&viewer, &two, 43, None).await.unwrap());
    // A trade of names, a removal, a replacement, a mended problem.
    let at = |name: &str| world.path(&format!("films/{name}"));
    std::fs::rename(at("Part 2.mp4"), at("t")).unwrap();
    std::fs::rename(at("Part 10.mp4"), at("Part 2.mp4")).unwrap();
    std::fs::rename(at("t"), at("Part 10.mp4")).unwrap();
    std::fs::remove_file(at("a/[b] 100%.mp4")).unwrap();
    world.write("films/lies.mp4", MATROSKA);
    rescan(&library).await;
    assert_eq!(library.status().trouble, None);
    assert_eq!(item(&library, "Part 10.mp4").await.id, two);
    assert_eq!(item(&library, "Part 2.mp4").await.id, ten);
    assert_eq!(item(&library, "Part 10.mp4").await.position_ms, 43);
    assert_eq!(
        files(&library).await,
        ["Part 10.mp4", "Part 2.mp4", "lies.mp4", "song.flac"]
    );
    assert_eq!(library.problems(10).await.unwrap().1, 1);
    until(&library, || async {
        items(&library)
            .await
            .iter()
            .all(|item| item.picture != PictureState::Wanted)
    })
    .await;
    assert!(library.picture(&two).await.is_ok());
    world.clock.advance(Duration::from_secs(31 * 86_400));
    rescan(&library).await;
    assert_eq!(library.status().trouble, None);
    library.shutdown().await;
    world.options.folders.pop();
    let library = world.open().await;
    assert_eq!(files(&library).await, ["Part 10.mp4", "Part 2.mp4", "lies.mp4"]);
    assert!(library.accept_folder(0).await.unwrap().is_some());
    world.close(library).await;
    drop(server);
}

#[tokio::test]
async fn no_list_and_no_search_looks_at_every_row() {
    use ether_store::{Bound, Sql, Value};
    let world = World::new().await;
    let library = world.open().await;
    let tables = world.store.component(&COMPONENT).await.unwrap();
    let (text, number) = (|| Value::from("x"), || Value::from(1));
    let [by_content, by_inode] = crate::catalog::alike_sql();
    for (sql, values) in [
        (crate::shelf::list_sql(false), vec![text(), number()]),
        (crate::shelf::list_sql(true), vec![text(), number(), text()]),
        (crate::shelf::PROBLEMS.into(), vec![text(), number()]),
        (by_content, vec![text(), number(), text()]),
        (by_inode, vec![text(), number(), number(), number(), number()]),
    ] {
        let explain = Sql::generated(format!("EXPLAIN QUERY PLAN {}", sql.as_str()));
        let rows = tables
            .query(Bound::of(Duration::from_secs(5)), explain, values)
            .await
            .unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.text("detail").unwrap()).collect();
        // An index that is walked in the order of the answer stops at its limit.
        let walks = |step: &&String| step.contains("SCAN") && !step.contains("library_problems_looked");
        assert_eq!(plan.iter().find(walks), None, "{}: {plan:?}", sql.as_str());
        assert!(
            !plan.iter().any(|step| step.contains("TEMP B-TREE")),
            "{}: {plan:?}",
            sql.as_str()
        );
    }
    world.close(library).await;
}

/// Prints what a library of ten thousand costs; a measurement of the long tier, not a promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_items_are_there_at_once() {
    if std::env::var_os("ETHER_SOAK").is_none() {
        return;
    }
    let world = World::new().await;
    for number in 0..10_000 {
        world.write(
            &format!("films/{}/Film {number}.mp4", number % 100),
            &film(number),
        );
    }
    let clock = SystemClock::new();
    let since = |from: ether_types::Monotonic| clock.monotonic().saturating_since(from);
    let from = clock.monotonic();
    let library = world.open().await;
    println!("first scan: {:?}", since(from));
    library.shutdown().await;
    let from = clock.monotonic();
    let library = world.start().await;
    println!("start: {:?}", since(from));
    library.finished(1).await;
    let from = clock.monotonic();
    let shelf = items(&library).await;
    println!("list of {}: {:?}", shelf.len(), since(from));
    let from = clock.monotonic();
    let page = library
        .list(&Viewer::owner(), Some(&shelf[5_000].id), 100)
        .await
        .unwrap();
    println!("page of {}: {:?}", page.items.len(), since(from));
    let from = clock.monotonic();
    rescan(&library).await;
    println!("scan without changes: {:?}", since(from));
    let from = clock.monotonic();
    let _ = library.detail(&Viewer::owner(), &shelf[5_000].id).await.unwrap();
    println!("detail: {:?}", since(from));
    let memory = std::fs::read_to_string("/proc/self/status").unwrap();
    println!(
        "{:?}",
        memory
            .lines()
            .filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS"))
            .collect::<Vec<_>>()
    );
    world.close(library).await;
}
