//! Stories of tracks that people have, and of tracks that nobody should have.

use proptest::prelude::*;

use super::*;

const HEADER: &str = "[Script Info]\r\n; made by nobody\r\nPlayResX: 640\r\nPlayResY: 360\r\n\r\n[V4+ Styles]\r\n\
    Format: Name, Fontname, Fontsize, Bold, Italic, Alignment\r\nStyle: Default,Arial,48,0,0,2\r\n\
    Style: Thought,Arial,48,0,-1,2\r\nStyle: Sign,Arial,48,0,0,8\r\n\r\n[Events]\r\nFormat: Layer, Start\r\n";

const FILM: Clock = Clock {
    zero: Ticks::ZERO,
    end: Ticks(7_200 * Ticks::HZ),
};

fn at(millis: i64) -> Ticks {
    Ticks::from_timescale(millis, 1_000)
}

fn line(start: i64, end: i64, body: &str) -> Line {
    Line {
        start: at(start),
        end: Some(at(end)),
        settings: String::new(),
        body: body.to_owned(),
    }
}

fn said(start: i64, end: i64, style: &str, text: &str) -> Line {
    line(start, end, &format!("0,{style},,0,0,0,,{text}"))
}

fn script(comments: bool, lines: Vec<Line>) -> Track {
    Track {
        form: Form::Ass {
            header: HEADER.to_owned(),
            comments,
        },
        lines,
    }
}

fn cues(track: &Track) -> String {
    webvtt::file(track, FILM, None)
        .strip_prefix("WEBVTT\n\n")
        .unwrap()
        .to_owned()
}

fn one(comments: bool, style: &str, text: &str) -> String {
    let cues = cues(&script(comments, vec![said(1_000, 2_000, style, text)]));
    cues.trim_end()
        .strip_prefix("00:00:01.000 --> 00:00:02.000")
        .map_or(cues.clone(), str::to_owned)
}

#[test]
fn looks_that_webvtt_has_are_kept_and_others_leave_no_trace() {
    let cases = [
        (r"{\i1}leaning{\i0} upright", "\n<i>leaning</i> upright"),
        (r"{\b1}a{\i1}b{\b0}c{\i0}d", "\n<b>a</b><b><i>b</i></b><i>c</i>d"),
        (r"{\fad(200,200)\c&HFF&\fs20}red{\c}", "\nred"),
        (r"one\Ntwo\nthree\hfour", "\none\ntwo three&nbsp;four"),
        (r"{\b700}bold{\r} not", "\n<b>bold</b> not"),
        (r"{\t(0,100,\i1)}moves", "\nmoves"),
        (r"over {\i1}\Nlines", "\nover\n<i>lines</i>"),
        (r"{\an8}above", " line:0\nabove"),
        (r"{\a6}above", " line:0\nabove"),
        (r"{\an1}left", " position:0% align:start\nleft"),
        (r"{\pos(320,20)}sign", " line:0\nsign"),
        (r"{\pos(320,340)}low", "\nlow"),
        (r"a < b && c > d --> e", "\na &lt; b &amp;&amp; c &gt; d --&gt; e"),
        (r"{a comment}said", "\nsaid"),
        (r"{\p1}m 0 0 l 10 10{\p0}after", "\nafter"),
        (r"half { open", "\nhalf { open"),
    ];
    for (text, cue) in cases {
        assert_eq!(one(true, "Default", text), cue, "{text}");
    }
    assert_eq!(one(true, "Thought", r"hm {\i0}no"), "\n<i>hm </i>no");
    assert_eq!(one(true, "Sign", "EXIT"), " line:0\nEXIT");
    assert_eq!(one(true, "*Unknown", "said"), "\nsaid");
}

#[test]
fn what_came_from_marked_up_text_keeps_its_braces_and_loses_its_tags() {
    assert_eq!(one(false, "Default", "{sighs} no"), "\n{sighs} no");
    assert_eq!(
        one(false, "Default", "<FONT color=red>a</font> &amp; b &#39;c&#x27;"),
        "\na &amp; b 'c'"
    );
    assert_eq!(
        one(false, "Default", "<laughs> 1 < 2 &c;"),
        "\n&lt;laughs&gt; 1 &lt; 2 &amp;c;"
    );
    // In a script they are what is said.
    assert_eq!(one(true, "Default", "<b>a &amp; b"), "\n&lt;b&gt;a &amp;amp; b");
}

#[test]
fn nothing_in_a_cue_ends_it_early() {
    let track = script(
        true,
        vec![
            said(0, 1_000, "Default", r"one\N\N\N two\N"),
            said(1_000, 2_000, "Default", r"{\i1}{\i0}"),
            said(2_000, 3_000, "Default", r"\N \N"),
            said(3_000, 3_000, "Default", "no time at all"),
        ],
    );
    assert_eq!(cues(&track), "00:00:00.000 --> 00:00:01.000\none\n two\n\n");
}

#[test]
fn cues_are_on_the_viewers_clock_and_within_the_presentation() {
    let lines = vec![
        said(40_000_400, 40_000_900, "Default", "before"),
        said(40_001_000, 40_002_400, "Default", "across zero"),
        said(40_003_400, 40_004_400, "Default", "two"),
        said(40_060_400, 40_070_400, "Default", "across the end"),
        said(40_061_400, 40_070_400, "Default", "after"),
    ];
    let clock = Clock {
        zero: at(40_001_400),
        end: at(60_000),
    };
    let text = webvtt::file(&script(true, lines.clone()), clock, Some(Ticks(900_000)));
    assert_eq!(
        text,
        "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:900000\n\n\
         00:00:00.000 --> 00:00:01.000\nacross zero\n\n\
         00:00:02.000 --> 00:00:03.000\ntwo\n\n\
         00:00:59.000 --> 00:01:00.000\nacross the end\n\n"
    );
    let script = ass::file(&script(true, lines), clock);
    assert!(
        script.contains("\nDialogue: 0,0:00:02.00,0:00:03.00,Default,,0,0,0,,two\n"),
        "{script}"
    );
    assert!(!script.contains("after") && !script.contains("before") && !script.contains("nobody"));
    assert!(script.contains("Style: Thought,Arial,48,0,-1,2\n"));
}

/// Blocks of one time may come in any order, and lines may lie over each other.
#[test]
fn cues_are_in_order_and_what_is_drawn_twice_is_said_once() {
    let track = script(
        true,
        vec![
            said(5_000, 9_000, "Default", "later"),
            said(1_000, 8_000, "Default", "long"),
            said(2_000, 3_000, "Default", r"{\blur4}glow"),
            said(2_000, 3_000, "Default", "glow"),
        ],
    );
    let text = cues(&track);
    let starts: Vec<&str> = text
        .lines()
        .filter(|l| l.contains("-->"))
        .map(|l| &l[6..8])
        .collect();
    assert_eq!(starts, ["01", "02", "05"]);
}

#[test]
fn a_line_without_an_end_lasts_until_the_next_and_not_for_ever() {
    let mut lines = vec![said(1_000, 0, "Default", "a"), said(3_000, 0, "Default", "b")];
    lines.iter_mut().for_each(|line| line.end = None);
    let text = cues(&script(true, lines));
    assert!(text.starts_with("00:00:01.000 --> 00:00:03.000\na\n"), "{text}");
    assert!(text.contains("00:00:03.000 --> 00:00:08.000\nb\n"), "{text}");
}

#[test]
fn webvtt_is_read_as_browsers_do_and_keeps_its_settings() {
    let text = "\u{feff}WEBVTT - a title\r\n\r\nNOTE nothing\r\n\r\nSTYLE\r\n::cue {}\r\n\r\n\
                7\r\n00:01.500 --> 00:00:03.000  line:0 align:start \r\n<v Ada>Hello <i>you</i> &amp; all\r\n\r\n\
                00:99:99 --> nonsense\r\nskipped\r\n\r\n100:00:00.000 --> 100:00:01.000\r\nlate";
    let track = webvtt::read(text);
    assert_eq!(track.lines.len(), 2);
    let clock = Clock {
        end: at(400_000_000),
        ..FILM
    };
    assert_eq!(
        webvtt::file(&track, clock, None),
        "WEBVTT\n\n00:00:01.500 --> 00:00:03.000 line:0 align:start\n<v Ada>Hello <i>you</i> &amp; all\n\n\
         100:00:00.000 --> 100:00:01.000\nlate\n\n"
    );
    let script = ass::file(&track, clock);
    assert!(script.contains("0:00:01.50,0:00:03.00,Default,,0,0,0,,{\\an8}Hello {\\i1}you{\\i0} & all\n"));
}

proptest! {
    /// Whatever a line holds, a file has one payload for each pair of times and no blank line inside one.
    #[test]
    fn any_text_gives_whole_cues(text in "[ -~\\n\\\\{}<>&;éא]{0,60}", comments: bool, start in -5_000_i64..9_000) {
        let body = format!("0,Default,,0,0,0,,{text}");
        let track = script(comments, vec![line(start, start + 1_000, &body)]);
        let text = webvtt::file(&track, FILM, None);
        let blocks: Vec<&str> = text.trim_end().split("\n\n").collect();
        prop_assert_eq!(blocks[0], "WEBVTT");
        prop_assert!(blocks.len() <= 2);
        for block in &blocks[1..] {
            prop_assert_eq!(block.matches("-->").count(), 1);
            prop_assert!(block.lines().count() > 1);
        }
        prop_assert_eq!(ass::file(&track, FILM).matches("Dialogue: ").count(), usize::from(start > -1_000));
    }

    #[test]
    fn any_file_is_read_without_a_panic(text in "[ -~\\n\\r>:.0-9é]{0,200}") {
        let track = webvtt::read(&text);
        let again = webvtt::read(&webvtt::file(&track, FILM, None));
        prop_assert!(again.lines.len() <= track.lines.len());
    }
}
