#!/usr/bin/env bash
# Makes the synthetic clips that the tests play. Each has one property that real libraries trip over; the
# comment above its recipe says which.
#
#   scripts/make-clips.sh DIR            every clip of the tests
#   scripts/make-clips.sh DIR NAME...    only these (demo.mp4 is made only when it is named)
#
# A clip that is there is kept. Each is written under another name and renamed when it is whole, so a reader
# never sees half of one, and runs side by side wait for each other's clip instead of making it twice.
# Needs ffmpeg 5.1 or later with libx264 and libx265, flock and python3.
set -euo pipefail

if [ $# -lt 1 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
cd "$1"
shift
FFMPEG=${FFMPEG:-ffmpeg}

encode() { "$FFMPEG" -hide_banner -loglevel error -nostdin -y "$@"; }
# lavfi inputs: a moving test picture (SIZE RATE SECONDS) and a tone (SECONDS [HERTZ [SAMPLES]]).
picture() { printf 'testsrc2=size=%s:rate=%s:duration=%s' "$1" "$2" "$3"; }
tone() { printf 'sine=frequency=%s:sample_rate=%s:duration=%s' "${2:-440}" "${3:-44100}" "$1"; }
# The usual pair of inputs: SIZE RATE SECONDS.
film() { inputs=(-f lavfi -i "$(picture "$@")" -f lavfi -i "$(tone "$3")"); }
h264=(-c:v libx264 -preset ultrafast -pix_fmt yuv420p)
hevc=(-c:v libx265 -preset ultrafast)
no_scene_cuts=(-sc_threshold 0)

# One recipe per clip, named after it. $1 is the file to write; its name ends as the clip's does.

# 24000/1001 frames a second: segment lengths that are no round numbers.
ntsc.mkv() {
  encode -f lavfi -i "$(picture 640x360 24000/1001 120)" -f lavfi -i "$(tone 120 1000 48000)" \
    "${h264[@]}" -g 72 -c:a aac "$1"
}

# Keyframes anywhere, none near a multiple of the segment length.
irregular-keyframes.mkv() {
  film 640x360 25 90
  local at=0,6.5,13.1,18.9,26.7,30.6,36,42.4,49.2,54,60.7,69.2,72.7,80
  encode "${inputs[@]}" "${h264[@]}" -g 9999 "${no_scene_cuts[@]}" -force_key_frames "$at" -c:a ac3 "$1"
}

# One keyframe in twenty seconds.
sparse-keyframes.mp4() {
  film 640x360 25 120
  encode "${inputs[@]}" "${h264[@]}" -g 500 -keyint_min 500 "${no_scene_cuts[@]}" -c:a aac "$1"
}

# HEVC whose groups of pictures refer back over their keyframe.
open-gop.mkv() {
  film 640x360 25 60
  encode "${inputs[@]}" "${hevc[@]}" -x265-params open-gop=1:keyint=50:min-keyint=50:bframes=4:log-level=error \
    -c:a aac "$1"
}

# A clock that starts eleven hours in, as recordings of broadcasts do.
late-clock.ts() {
  film 640x360 25 60
  encode "${inputs[@]}" "${h264[@]}" -g 50 -c:a mp2 -output_ts_offset 40000 -f mpegts "$1"
}

# Ten seconds at 60 frames a second, ten at 12, and so on; the header says 60.
vfr.mkv() {
  film 640x360 60 60
  encode "${inputs[@]}" -vf "select='if(lt(mod(t,20),10),1,not(mod(n,5)))'" -vsync vfr "${h264[@]}" -c:a aac "$1"
}

# Interlaced MPEG-2 with pixels that are not square.
interlaced.ts() {
  film 720x576 50 30
  encode "${inputs[@]}" -vf interlace=scan=tff,setsar=64/45 -c:v mpeg2video -flags +ildct+ilme -top 1 -b:v 4M \
    -c:a mp2 -f mpegts "$1"
}

# Pixels that are not square, progressive.
anamorphic.mkv() { film 720x576 25 20; encode "${inputs[@]}" -vf setsar=64/45 "${h264[@]}" -c:a aac "$1"; }

# An odd width and height, which 4:2:0 cannot hold.
odd-size.mkv() {
  encode -f lavfi -i "$(picture 856x480 25 20),format=yuv444p,crop=w=853:h=479:x=0:y=0:exact=1" \
    -f lavfi -i "$(tone 20)" -c:v libx264 -preset ultrafast -pix_fmt yuv444p -c:a aac "$1"
}

# HDR10 with mastering display and light levels.
hdr10.mkv() {
  local display='G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1)'
  local colour=colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc
  encode -f lavfi -i "$(picture 1280x720 24 20),format=yuv420p10le" -f lavfi -i "$(tone 20)" "${hevc[@]}" \
    -x265-params "$colour:hdr10=1:master-display=$display:max-cll=1000,400:log-level=error" \
    -color_primaries bt2020 -color_trc smpte2084 -colorspace bt2020nc -c:a aac "$1"
}

# Styled text subtitles at 40 and 50 seconds, on black.
ass-cues.mkv() {
  local script=".$$.$BASHPID.ass"
  local fields='Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic'
  fields+=', Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment'
  fields+=', MarginL, MarginR, MarginV, Encoding'
  {
    printf '%s\n' '[Script Info]' 'ScriptType: v4.00+' 'PlayResX: 640' 'PlayResY: 360' '' '[V4+ Styles]'
    printf 'Format: %s\n' "$fields"
    printf 'Style: D,DejaVu Sans,48,%s,0,0,0,0,100,100,0,0,1,2,0,2,10,10,10,1\n' '&H00FFFFFF,&H0,&H0,&H0'
    printf '%s\n' '' '[Events]' 'Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text'
    local second
    for second in 40 50; do
      printf 'Dialogue: 0,0:00:%d.00,0:00:%d.00,D,,0,0,0,,CUE%d\n' "$second" $((second + 2)) "$second"
    done
  } > "$script"
  encode -f lavfi -i color=black:s=640x360:r=25:d=60 -f lavfi -i "$(tone 60)" -i "$script" -map 0 -map 1 -map 2 \
    "${h264[@]}" -g 50 -c:a aac -c:s ass "$1"
  rm "$script"
}

# Picture subtitles at the same times.
pgs-cues.mkv() {
  local pictures=".$$.$BASHPID.sup"
  python3 "$scripts/make-pgs.py" "$pictures" 1280x720 40-42 50-52
  # The demuxer counts from the first picture, hence the offset.
  encode -f lavfi -i color=black:s=1280x720:r=25:d=60 -f lavfi -i "$(tone 60)" -itsoffset 40 -i "$pictures" \
    -map 0 -map 1 -map 2 "${h264[@]}" -g 50 -c:a aac -c:s copy "$1"
  rm "$pictures"
}

# A still picture, and a film that has it as its first video track.
cover.jpg() { encode -f lavfi -i "$(picture 600x600 25 1)" -frames:v 1 -update 1 "$1"; }
cover-first.mkv() {
  clip cover.jpg
  encode -i cover.jpg -f lavfi -i "$(picture 640x360 25 20)" -f lavfi -i "$(tone 20)" -map 0:v -map 1:v -map 2:a \
    -c:v:0 copy -c:v:1 libx264 -preset ultrafast -pix_fmt:v:1 yuv420p -c:a aac "$1"
}

# Sound that stops at 41 of 60 seconds.
short-audio.mkv() {
  encode -f lavfi -i "$(picture 640x360 25 60)" -f lavfi -i "$(tone 41)" "${h264[@]}" -c:a aac "$1"
}

# DTS in 5.1 with side speakers, each channel a tone of its own.
surround-side.mkv() {
  local channels= hertz
  for hertz in 440 550 660 60 770 880; do channels+="${channels:+|}sin($hertz*2*PI*t)"; done
  encode -f lavfi -i "$(picture 640x360 25 20)" -f lavfi -i "aevalsrc=$channels:c=5.1(side):s=48000:d=20" \
    "${h264[@]}" -c:a dca -strict -2 "$1"
}

# Three fifths of the bytes of a film whose header promises all of it.
truncated.mkv() {
  clip ntsc.mkv
  head -c $(($(stat -c %s ntsc.mkv) * 3 / 5)) ntsc.mkv > "$1"
}

# 12 Mbit/s with its index after the media.
moov-at-end.mp4() { film 1280x720 25 60; encode "${inputs[@]}" "${h264[@]}" -b:v 12M -c:a aac "$1"; }

# The same ten seconds with and without a rotation to apply.
upright.mp4() { film 640x360 25 10; encode "${inputs[@]}" "${h264[@]}" -c:a aac "$1"; }
rotated.mp4() { clip upright.mp4; encode -i upright.mp4 -c copy -metadata:s:v rotate=90 "$1"; }

# Three soundtracks that can be told apart by ear and by tag.
three-languages.mkv() {
  encode -f lavfi -i "$(picture 640x360 25 30)" -f lavfi -i "$(tone 30 300)" -f lavfi -i "$(tone 30 600)" \
    -f lavfi -i "$(tone 30 900)" -map 0 -map 1 -map 2 -map 3 "${h264[@]}" -c:a aac \
    -metadata:s:a:0 language=eng -metadata:s:a:1 language=fra -metadata:s:a:2 language=jpn "$1"
}

# A white flash and a beep together, every ten seconds; ten seconds between keyframes.
flash-beep.mkv() {
  local on='lt(mod(t,10),0.2)'
  encode -f lavfi -i "color=black:s=640x360:r=25:d=120,drawbox=c=white:t=fill:enable='$on'" \
    -f lavfi -i "aevalsrc='if($on,sin(2*PI*1000*t),0)':s=48000:d=120" \
    "${h264[@]}" -g 250 -keyint_min 250 "${no_scene_cuts[@]}" -c:a aac "$1"
}

# Two minutes to look at, for a first start without films. Not one of the tests' clips.
demo.mp4() {
  encode -f lavfi -i "$(picture 1280x720 25 120)" -f lavfi -i "$(tone 120),volume=0.05" \
    "${h264[@]}" -g 50 -c:a aac -movflags +faststart "$1"
}

all=(ntsc.mkv irregular-keyframes.mkv sparse-keyframes.mp4 open-gop.mkv late-clock.ts vfr.mkv interlaced.ts
  anamorphic.mkv odd-size.mkv hdr10.mkv ass-cues.mkv pgs-cues.mkv cover.jpg cover-first.mkv short-audio.mkv
  surround-side.mkv truncated.mkv moov-at-end.mp4 upright.mp4 rotated.mp4 three-languages.mkv flash-beep.mkv)

# Makes one clip unless it is there, or waits for whoever is making it.
clip() {
  local name=$1
  [ -s "$name" ] && return
  (
    exec 9> ".lock.$name"
    flock 9
    [ -s "$name" ] && exit
    part=".part.$BASHPID.$name"
    trap 'rm -f "$part"' EXIT
    "$name" "$part"
    mv "$part" "$name"
    rm -f ".lock.$name"
    echo "made $name"
  )
}

[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
  declare -F "$name" > /dev/null && [[ $name == *.* ]] || { echo "there is no recipe for $name" >&2; exit 2; }
done
# Two at a time: the encoders use what cores there are, and the short clips leave some idle.
failed=0
for name in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || failed=1; done
  clip "$name" &
done
while [ -n "$(jobs -rp)" ]; do wait -n || failed=1; done
for name in "$@"; do
  [ -s "$name" ] || { echo "could not make $name" >&2; failed=1; }
done
exit $failed
