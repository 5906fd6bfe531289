/** Terminal output of the demo: numbered steps with their duration and result. */

const out = process.stdout;
// A closed pipe or terminal must not prevent the demo from cleaning up.
out.on('error', () => undefined);
const color = (code: number, text: string): string =>
  out.isTTY ? `\u001b[${code}m${text}\u001b[0m` : text;

export const bold = (text: string): string => color(1, text);
const dim = (text: string): string => color(2, text);

export function print(text = ''): void {
  out.write(`${text}\n`);
}

export class Steps {
  readonly #total: number;
  #done = 0;

  constructor(total: number) {
    this.#total = total;
  }

  /** Runs one step; `describe` summarizes its result for the user. */
  async run<T>(title: string, work: () => Promise<T>, describe: (result: T) => string): Promise<T> {
    this.#done += 1;
    const label = `[${this.#done}/${this.#total}] ${title}`;
    if (out.isTTY) out.write(`${label} …`);
    const startMs = performance.now();
    try {
      const result = await work();
      const seconds = ((performance.now() - startMs) / 1000).toFixed(1);
      const line = `${bold('✓')} ${label}: ${describe(result)} ${dim(`(${seconds} s)`)}`;
      out.write(out.isTTY ? `\r\u001b[K${line}\n` : `${line}\n`);
      return result;
    } catch (error) {
      out.write(out.isTTY ? `\r\u001b[K✗ ${label}\n` : `✗ ${label}\n`);
      throw error;
    }
  }
}

/** A two-column report. */
export function formatTable(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `  ${name.padEnd(width)}  ${value}`).join('\n');
}
