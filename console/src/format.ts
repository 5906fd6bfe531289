/** Numbers and times as people read them. */

export function formatCount(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  if (size >= 100) return Math.round(value).toString();
  return trim(value);
}

/** All digits, in groups of three. */
export function formatExact(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : value.toLocaleString('en-US');
}

/** Three significant digits. */
function trim(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

export function formatBytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [size, unit] = [value, 0];
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${trim(size)} ${units[unit]}`;
}

export function formatMs(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (value >= 1_000) return `${trim(value / 1_000)} s`;
  return value >= 1 || value === 0 ? `${trim(value)} ms` : `${trim(value * 1_000)} µs`;
}

export function formatPercent(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : `${trim(value)} %`;
}

export function formatPlain(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : trim(value);
}

/** 3 min 12 s; two units at most. */
export function formatDuration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function formatTime(iso: string): string {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return iso;
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}
