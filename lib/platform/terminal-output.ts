/** Output of commands: lines on stdout and tables with aligned columns. */

export function printLine(text: string): void {
  process.stdout.write(`${text}\n`);
}

/**
 * Prints a part of long output and waits until the reader has consumed it.
 * @returns false when the reader closed the pipe, as `| head` does: stop printing
 */
export async function printChunk(text: string): Promise<boolean> {
  const { stdout } = process;
  if (stdout.destroyed) return false;
  if (stdout.write(`${text}\n`)) return true;
  return new Promise((resolve) => {
    const settle = (taken: boolean) => (): void => {
      stdout.off('drain', drained).off('error', closed).off('close', closed);
      resolve(taken);
    };
    const drained = settle(true);
    const closed = settle(false);
    stdout.on('drain', drained).on('error', closed).on('close', closed);
  });
}

/**
 * Aligns columns to their widest cell; the last column is not padded. Control characters become
 * spaces.
 */
export function formatTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, ...rows].map((row) => row.map(replaceControlCharacters));
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

/** Makes text from elsewhere safe for a terminal. */
export function replaceControlCharacters(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they must not reach a terminal
  return text.replaceAll(/[\u0000-\u001f\u007f]/g, ' ');
}

/** "480.0 MB" */
export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

/** Text on a terminal that each `draw` replaces. */
export class LiveText {
  #rows = 0;

  draw(text: string): void {
    const { stdout } = process;
    const columns = Math.max(1, stdout.columns ?? 80);
    const lines = text.split('\n').map((line) => line.slice(0, columns - 1));
    // Moves the cursor to the start of the previous text and clears everything below.
    const back = this.#rows === 0 ? '' : `\u001b[${this.#rows}A`;
    stdout.write(`${back}\u001b[0J${lines.join('\n')}\n`);
    this.#rows = lines.length;
  }
}
