//! The inventory of the FFmpeg that is installed, and of programs that answer otherwise.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ether_encoder::{Device, Protocol, Unsupported, VideoAction, VideoCodec};
use ether_process::{Config, Processes};
use ether_types::{ManualClock, SystemClock};

use super::*;
use crate::origin::file_url;
use crate::plan::plan;
use crate::strand::RungSet;
use crate::tests::film::{COPY, ENCODE, Film, Make, script};
use crate::tests::hardware::with_a_card;

struct Bench {
    processes: Processes,
    clock: ManualClock,
    dir: tempfile::TempDir,
}

impl Bench {
    fn open() -> Self {
        Self {
            processes: Processes::start(Config::unguarded(Arc::new(SystemClock::new()))).unwrap(),
            // The processes end in the machine's own time; only ages are told by this one.
            clock: ManualClock::at(Timestamp::from_micros(1 << 50)),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A program that does `first` before it becomes the real FFmpeg.
    fn program(&self, first: &str) -> PathBuf {
        script(self.dir.path(), "ffmpeg", &format!("{first}\nexec ffmpeg \"$@\""))
    }

    /// A machine with a render node and an NVIDIA card of which only the files are there.
    fn machine(&self) -> Machine {
        let root = self.dir.path().join("root");
        std::fs::create_dir_all(root.join("dev/dri")).unwrap();
        std::fs::create_dir_all(root.join("sys/module/i915")).unwrap();
        std::fs::write(root.join("dev/dri/renderD128"), "").unwrap();
        std::fs::write(root.join("dev/nvidia0"), "").unwrap();
        std::fs::write(root.join("dev/nvidiactl"), "").unwrap();
        std::fs::write(root.join("sys/module/i915/srcversion"), "A1\n").unwrap();
        Machine::at(root)
    }

    /// The inventory without a gap: a busy machine may not answer every question in time.
    async fn complete(&self, machine: &Machine, program: &Path) -> Inventory {
        for _ in 0..20 {
            let inventory = self.load(machine, program).await;
            if !inventory.has_gaps(self.clock.now()) {
                return inventory;
            }
        }
        panic!("this machine is too busy to ask FFmpeg anything");
    }

    async fn load(&self, machine: &Machine, program: &Path) -> Inventory {
        let cache = self.dir.path().join("inventory.json");
        let spawner = self.processes.spawner();
        Inventory::load_on(machine, &spawner, &self.clock, program, &cache)
            .await
            .unwrap()
    }
}

/// What is asked of FFmpeg is what the plans make it use: FFmpeg itself is asked by running the plan.
#[tokio::test]
async fn everything_that_a_plan_uses_is_asked_for_and_there() {
    let bench = Bench::open();
    let inventory = bench.complete(&Machine::default(), Path::new("ffmpeg")).await;
    let film = Film::clip("ntsc.mkv");
    let mut request = film.request(Make {
        copy_audio: false,
        ..ENCODE
    });
    assert_eq!(inventory.supports(&request), Ok(()));
    assert_eq!(inventory.admits_remote(&request), Ok(()));
    let strand = &Strand::all(&request)[0];
    let needs = Needs::of(strand, request.protocol);
    let last = strand.timeline.len() as u32 - 2;
    let args = plan(strand, RungSet::one(0), last, 0, &file_url(film.path.as_os_str())).args;
    let mut spec = ether_process::Spec::new("ffmpeg");
    spec.args(&args).stdout_pipe();
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 256 << 20,
        deadline: Duration::from_secs(120),
    };
    bench.processes.spawner().run_bounded(spec, bounds).await.unwrap();
    // Each thing that it needs is missed where it is not there.
    for (kind, name) in needs.iter() {
        let mut poorer = inventory.clone();
        poorer.forget(*kind, name);
        let missing = Err(Unsupported::Missing {
            what: format!("{kind} {name}"),
        });
        assert_eq!(poorer.supports(&request), missing);
        assert_eq!(poorer.admits_remote(&request), missing);
    }
    // A stream needs what its own command line says.
    let stream = Request {
        protocol: Protocol::Http {
            start: ether_media::Ticks::from_secs_f64(7.0),
        },
        ..film.request(COPY)
    };
    assert_eq!(inventory.admits_remote(&stream), Ok(()));
    for what in [(Kind::Muxer, "matroska"), (Kind::BitstreamFilter, "noise")] {
        let mut poorer = inventory.clone();
        poorer.forget(what.0, what.1);
        let refused = poorer.supports(&stream);
        assert!(matches!(refused, Err(Unsupported::Missing { .. })), "{refused:?}");
        assert_eq!(poorer.supports(&film.request(COPY)), Ok(()));
    }
    if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|video| &mut video.action) {
        encode.codec = VideoCodec::Hevc;
        encode.device = Device::Vaapi { node: 128 };
    }
    let refused = inventory.supports(&request);
    assert!(matches!(refused, Err(Unsupported::Missing { .. })), "{refused:?}");
    bench.processes.shutdown().await;
}

#[tokio::test]
async fn what_is_not_known_is_tried_here_and_refused_to_others_and_asked_for_again() {
    let bench = Bench::open();
    let (marks, mended) = (bench.dir.path().join("asked"), bench.dir.path().join("mended"));
    let program = bench.program(&format!(
        r#"echo "$*" >> {}; case "$*" in *-filters*) [ -e {} ] || exit 1;; esac"#,
        marks.display(),
        mended.display()
    ));
    let machine = Machine::at(bench.dir.path().join("bare"));
    let inventory = bench.load(&machine, &program).await;
    assert!(inventory.unanswered().contains(&Kind::Filter));
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    assert_eq!(inventory.supports(&request), Ok(()));
    let refused = inventory.admits_remote(&request);
    assert!(
        matches!(refused, Err(Unsupported::NotKnown { .. })),
        "{refused:?}"
    );
    // The next start asks for what is missing, and for nothing else: the rest was kept.
    std::fs::write(&mended, "").unwrap();
    std::fs::remove_file(&marks).unwrap();
    let known = bench.complete(&machine, &program).await;
    assert_eq!(known.presence(Kind::Filter, "scale"), Presence::Present);
    let asked = std::fs::read_to_string(&marks).unwrap();
    assert!(asked.contains("-filters"), "{asked}");
    assert!(!asked.contains("-version"), "{asked}");
    bench.processes.shutdown().await;
}

#[tokio::test]
async fn devices_are_tried_for_real_and_again_when_their_drivers_change() {
    let bench = Bench::open();
    let marks = bench.dir.path().join("asked");
    let program = bench.program(&format!("echo \"$*\" >> {}", marks.display()));
    let machine = bench.machine();
    let asked = || {
        let text = std::fs::read_to_string(&marks).unwrap_or_default();
        let trials = text.lines().filter(|line| line.contains("testsrc2")).count();
        (text.lines().count() - trials, trials)
    };
    // There are files of devices here and no devices: each trial fails as the real FFmpeg says.
    let inventory = bench.complete(&machine, &program).await;
    assert_eq!(inventory.trials.len(), 6);
    for trial in &inventory.trials {
        let Verdict::Failed { said } = &trial.verdict else {
            panic!("{trial:?}")
        };
        assert!(!said.is_empty() && !said.contains("0x"), "{said}");
    }
    let (questions, trials) = asked();
    assert!(questions > Kind::ALL.len() && trials >= 6);
    // The same program and drivers are not asked again.
    assert_eq!(bench.load(&machine, &program).await, inventory);
    assert_eq!(asked(), (questions, trials));
    // Another driver is.
    std::fs::write(bench.dir.path().join("root/sys/module/i915/srcversion"), "A2\n").unwrap();
    bench.complete(&machine, &program).await;
    assert!(asked().0 > questions && asked().1 >= trials + 6);
    // A device that is gone is no candidate any more.
    std::fs::remove_file(bench.dir.path().join("root/dev/nvidia0")).unwrap();
    assert_eq!(bench.load(&machine, &program).await.trials.len(), 4);
    bench.processes.shutdown().await;
}

/// A trial that failed is believed for minutes, and no longer than what it depends on stays as it was: a user who
/// joins the group that may open a device, or a card that was reset, gets it back without deleting anything.
#[tokio::test]
async fn a_failed_trial_is_repeated_after_a_while_or_when_somebody_was_let_in() {
    let bench = Bench::open();
    let marks = bench.dir.path().join("asked");
    let program = bench.program(&format!("echo \"$*\" >> {}", marks.display()));
    let machine = bench.machine();
    bench.complete(&machine, &program).await;
    let asked = || {
        let text = std::fs::read_to_string(&marks).unwrap_or_default();
        let _ = std::fs::remove_file(&marks);
        let trials = text.lines().filter(|line| line.contains("testsrc2")).count();
        (text.lines().count() - trials, trials)
    };
    asked();
    bench.clock.advance(FAILURE_STANDS - Duration::from_secs(1));
    bench.load(&machine, &program).await;
    assert_eq!(asked(), (0, 0), "it is believed for a while");
    bench.clock.advance(Duration::from_secs(1));
    bench.complete(&machine, &program).await;
    let (questions, trials) = asked();
    assert!(questions == 0 && trials >= 6, "{questions} {trials}");
    // The clock was set back: how old the failures are is not known.
    bench.clock.step_wall(-86_400_000_000);
    bench.complete(&machine, &program).await;
    assert!(asked().1 >= 6);

    // Somebody was let in.
    let node = bench.dir.path().join("root/dev/dri/renderD128");
    std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o640)).unwrap();
    bench.complete(&machine, &program).await;
    assert!(asked().1 >= 6);
    bench.processes.shutdown().await;
}

/// The card that others use when the server starts for the first time is no lost card.
#[tokio::test]
async fn a_card_that_was_full_at_the_first_start_is_tried_at_the_next() {
    let bench = Bench::open();
    let full = bench.dir.path().join("full");
    std::fs::write(&full, "").unwrap();
    let before = format!(
        r#"if [ -e {} ]; then
    echo "[h264_nvenc @ 0x5581d3e0a2c0] OpenEncodeSessionEx failed: out of memory (10): (no details)" >&2
    exit 1
fi"#,
        full.display()
    );
    let program = with_a_card(bench.dir.path(), &before, r#"exec ffmpeg "$@""#);
    let machine = Machine::at(bench.dir.path().join("root"));
    std::fs::create_dir_all(bench.dir.path().join("root/dev")).unwrap();
    std::fs::write(bench.dir.path().join("root/dev/nvidia0"), "").unwrap();
    let card = Device::Nvenc { gpu: 0 };
    let verdict = async |wanted: Verdict| {
        // A busy machine may not finish a trial in time.
        for _ in 0..20 {
            let inventory = bench.load(&machine, &program).await;
            match inventory.verdict(card, VideoCodec::H264) {
                Some(Verdict::Unknown) => {}
                verdict => return assert_eq!(verdict, Some(&wanted)),
            }
        }
        panic!("this machine is too busy to try anything");
    };
    verdict(Verdict::Full).await;
    std::fs::remove_file(&full).unwrap();
    verdict(Verdict::Works).await;
    // That it works is kept, and being full later does not shake it.
    std::fs::write(&full, "").unwrap();
    verdict(Verdict::Works).await;
    bench.processes.shutdown().await;
}

/// A program that hangs on one question costs that answer and nothing else.
#[tokio::test]
async fn a_question_that_hangs_is_given_up() {
    let bench = Bench::open();
    let program = bench.program(r#"case "$*" in *-decoders*) exec sleep 60;; esac"#);
    let machine = Machine::at(bench.dir.path().join("bare"));
    let inventory = bench.load(&machine, &program).await;
    assert!(inventory.unanswered().contains(&Kind::Decoder));
    assert_ne!(inventory.unanswered(), Kind::ALL);
    bench.processes.shutdown().await;
}

/// Asking FFmpeg is bounded in bytes and in time (T22): 1 MiB of one answer, 3 s of one question, 15 s of them all.
#[tokio::test]
async fn an_answer_of_more_than_a_mebibyte_is_none() {
    let bench = Bench::open();
    // 16 bytes a line, below and above the bound.
    let of = |lines: u32| format!("yes ' D  thisamuxer1' | head -n {lines}");
    let program = bench.program(&format!(
        "case \"$*\" in *-muxers*) {}; exit 0;; *-demuxers*) {}; exit 0;; esac",
        of((1 << 16) - 100),
        of((1 << 16) + 100)
    ));
    let machine = Machine::at(bench.dir.path().join("bare"));
    let mut inventory = bench.load(&machine, &program).await;
    for _ in 0..20 {
        // A busy machine may not answer every question in time.
        if !inventory.unanswered().contains(&Kind::Muxer) {
            break;
        }
        inventory = bench.load(&machine, &program).await;
    }
    assert_eq!(inventory.presence(Kind::Muxer, "thisamuxer1"), Presence::Present);
    assert_eq!(inventory.unanswered(), [Kind::Demuxer]);
    bench.processes.shutdown().await;
}

#[tokio::test]
async fn all_questions_and_trials_together_take_fifteen_seconds() {
    let bench = Bench::open();
    // Processes live by the clock that the test moves, and no question is ever answered but the first.
    let clock = bench.clock.clone();
    let processes = Processes::start(Config::unguarded(Arc::new(clock.clone()))).unwrap();
    let marks = bench.dir.path().join("asked");
    let program = bench.program(&format!(
        "case \"$*\" in -version) ;; *) echo \"$*\" >> {}; exec sleep 1000;; esac",
        marks.display()
    ));
    let machine = bench.machine();
    let asked = || {
        let text = std::fs::read_to_string(&marks).unwrap_or_default();
        text.lines().count() as u64
    };
    let cache = bench.dir.path().join("inventory.json");
    let spawner = processes.spawner();
    let mut loading = std::pin::pin!(Inventory::load_on(&machine, &spawner, &clock, &program, &cache));
    let pause = || tokio::time::sleep(Duration::from_millis(5));
    // The time of them all runs once the first is asked.
    while asked() == 0 {
        tokio::select! {
            _ = &mut loading => panic!("nothing was asked"),
            () = pause() => {}
        }
    }
    for _ in 0..14 {
        clock.advance(Duration::from_secs(1));
        tokio::select! {
            _ = &mut loading => panic!("given up before its time"),
            () = pause() => {}
        }
    }
    // With the fifteenth it is over: time stands still from here on.
    clock.advance(Duration::from_secs(1));
    let inventory = loading.await.unwrap();
    assert_eq!(inventory.unanswered(), Kind::ALL);
    let tried = |trial: &Trial| trial.verdict != Verdict::Unknown;
    assert!(!inventory.trials.iter().any(tried));
    processes.shutdown().await;
    bench.processes.shutdown().await;
}
