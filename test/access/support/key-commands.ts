/** The commands of `keys`, run in this process. */
import { createProgram } from '../../../tools/keys/cli.ts';

export class KeyCommands {
  readonly file: string;

  constructor(file: string) {
    this.file = file;
  }

  /** @returns the key */
  add(id: string, ...flags: string[]): string {
    return this.run('add', '--id', id, ...flags).at(-1) ?? '';
  }

  /** @returns the printed lines. @throws CubeError */
  run(command: string, ...flags: string[]): string[] {
    const lines: string[] = [];
    const { write } = process.stdout;
    process.stdout.write = (text) => lines.push(...String(text).split('\n').filter(Boolean)) > 0;
    try {
      createProgram().parse([command, '--file', this.file, ...flags], { from: 'user' });
    } finally {
      process.stdout.write = write;
    }
    return lines;
  }
}
