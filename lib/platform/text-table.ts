/** What commands print: lines on stdout, tables with aligned columns. */

export function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/**
 * Prints of something long: waits until the reader has taken it.
 * @returns false when the reader went away, as `| head` does: no more needs to be printed
 */
export async function printPiece(text: string): Promise<boolean> {
  const { stdout } = process;
  if (stdout.destroyed) return false;
  if (stdout.write(`${text}\n`)) return true;
  return new Promise((resolve) => {
    const settle = (taken: boolean) => (): void => {
      stdout.off('drain', drained).off('error', gone).off('close', gone);
      resolve(taken);
    };
    const drained = settle(true);
    const gone = settle(false);
    stdout.on('drain', drained).on('error', gone).on('close', gone);
  });
}

/** Columns as wide as their widest cell; the last one is not padded. Control characters in cells are blanked. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, ...rows].map((row) => row.map(printable));
  const widths = head.map((_, i) => Math.max(...lines.map((row) => row[i]?.length ?? 0)));
  return lines
    .map((row) =>
      row
        .map((cell, i) => cell.padEnd(widths[i] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** What others wrote, without what a terminal would obey. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not reach a terminal
  return text.replaceAll(/[\u0000-\u001f\u007f]/g, ' ');
}

/** "480.0 MB" */
export function bytesText(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

/** A text on a terminal that is drawn over its last one. */
export class LiveText {
  #rows = 0;

  draw(text: string): void {
    const { stdout } = process;
    const columns = Math.max(1, stdout.columns ?? 80);
    const lines = text.split('\n').map((line) => line.slice(0, columns - 1));
    // Up to where the last one began, and away with what is below.
    const back = this.#rows === 0 ? '' : `\u001b[${this.#rows}A`;
    stdout.write(`${back}\u001b[0J${lines.join('\n')}\n`);
    this.#rows = lines.length;
  }
}
