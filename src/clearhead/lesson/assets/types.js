// What goes between the modules, as clearhead.lesson.compute writes it. Only for readers and for `tsc --noEmit`: nothing here runs.

/**
 * @typedef {number | "-inf" | null} Cell null where a matrix has no cell
 * @typedef {"weight" | "signed" | "plain"} Shade
 * @typedef {{name: string, values: Cell[][], shade?: Shade, rows?: string[], columns?: string[], decimals?: number}} Matrix
 * @typedef {Required<Matrix> & {shape: string, note: string}} Grid
 * @typedef {[string, string][]} Code pieces, each with its kind
 * @typedef {{head: string[], rows: string[][], caption?: string, wide?: boolean}} Table
 * @typedef {{head: string[], rows: string[][], beside: string, note: string, points: [number, number, number | null][]}} Cost each point
 *   a length, its seconds, and the seconds of what it is compared with
 * @typedef {{kind: string, title: string, text: string, data: any}} Try
 * @typedef {{is: "say", text: string} | {is: "source", file: string, code: Code} | {is: "ran", code: Code} | {is: "grids", items: Grid[]}
 *   | {is: "equal", what: string, difference: number, holds: boolean} | {is: "table"} & Table | {is: "cost"} & Cost | {is: "try"} & Try} Block
 * @typedef {{key: string, title: string, question: string, blocks: Block[]}} Page
 * @typedef {{text: string | null, time: number | null, width: number | null, seed: number}} Settings
 * @typedef {{text: (string | null)[], time: number[], width: (number | null)[], seed: number[]}} Options
 * @typedef {{contents: [string, string, string][], most: number, first: Settings}} Facts contents: key, title and question of each page
 * @typedef {Facts & {blocks: Block[], alike: Record<string, number[]>, choices: Record<string, Record<string, number[]>>, options: Options}} Kept
 * @typedef {{options: Options | null, measured: string, facts: () => Promise<Facts>, page: (key: string, settings: Settings) => Promise<Page>}} Source
 *   options: null where everything can be computed; measured: where and when times were
 * @typedef {{names: (n: number) => string[], measured: string}} Around what a block is told: names of n tokens, and where times were measured
 */

export {};
