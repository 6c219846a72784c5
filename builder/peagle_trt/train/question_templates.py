"""Parts that questions are composed of: topics, instructions by kind, short materials and programming exercises."""

from __future__ import annotations

import random
from collections.abc import Callable

TOPICS = (
    "the water cycle", "renewable energy", "the French Revolution", "machine learning", "a small fishing village",
    "time management", "the human heart", "electric cars", "ancient Rome", "healthy breakfast ideas", "black holes",
    "remote work", "a lost cat", "climate change", "the stock market", "learning the guitar", "volcanoes",
    "online privacy",
    "the Industrial Revolution", "a trip to Japan", "photosynthesis", "public speaking", "the solar system", "chess",
    "data structures", "a haunted library", "recycling", "the Silk Road", "yoga", "computer networks",
    "the immune system",
    "a family reunion", "budget travel", "coffee", "the Renaissance", "neural networks", "gardening in small spaces",
    "the Great Depression", "ocean currents", "a robot who wants to paint", "plate tectonics", "running a marathon",
    "the printing press", "vaccines", "social media", "jazz music", "the Cold War", "bread baking", "genetics",
    "a retired detective", "supply and demand", "the Amazon rainforest", "operating systems", "stress at work",
    "space exploration", "the Egyptian pyramids", "kindness", "a mountain railway", "bees", "nutrition labels",
    "databases", "the moon landing", "an old lighthouse", "inflation", "magnets", "sleep", "city parks", "libraries",
    "Shakespeare's comedies", "the periodic table", "sound waves", "minimalism", "a snowstorm", "bicycles",
    "trade unions",
    "the Roman Senate", "encryption", "rivers", "team sports", "hand-made pottery", "the theory of evolution",
    "a desert caravan", "binary search", "folk songs", "the nervous system", "lighthouse keepers", "fermentation",
    "the French language", "glaciers", "a broken violin", "insurance", "the Byzantine Empire", "probability",
    "community theatre", "wind turbines", "cooking for one", "an orchard in autumn", "world maps", "cloud computing",
    "the Magna Carta", "migrating birds", "a chess club", "job interviews", "the digestive system", "radio",
    "street photography", "negotiation", "a night train", "tides", "version control", "the Ottoman Empire", "soil",
    "a school newspaper", "batteries", "minimum wages", "coral reefs", "an abandoned factory", "meditation",
    "the Bauhaus", "linear equations", "a neighbourhood market", "antibiotics", "podcasts", "the Vikings", "tea",
    "weather forecasts", "software testing", "a homesick astronaut", "the Mughal gardens", "friendship", "bridges",
    "sorting algorithms", "house plants", "the suffragettes", "earthquakes", "a talking parrot", "public transport",
    "the lungs", "museums", "credit cards", "a winter festival", "optical illusions", "web design", "the Inca roads",
    "honesty", "swimming", "graph theory", "a village blacksmith", "water purification", "the jury system", "moss",
    "science fiction", "the Han dynasty", "knitting", "electromagnetism", "a late letter", "urban farming", "comets",
    "the human eye", "board games", "compilers", "the Black Death", "customer service", "a shy magician", "deserts",
    "carpentry", "statistics", "the Harlem Renaissance", "whales", "a lighthouse library", "taxes", "origami",
    "the carbon cycle", "user interfaces", "an island without clocks", "opera", "first aid", "the Space Race",
)  # fmt: skip

INSTRUCTIONS = {
    "writing": (
        ("Write a short story about {topic}.", "Now rewrite it with a surprising ending."),
        ("Write a blog post of about {big} words about {topic}.", "Turn it into three bullet points."),
        ("Write a poem about {topic}.", "Explain what the poem means."),
        ("Draft a polite email to a colleague about {topic}.", "Make it shorter and more formal."),
        ("Describe {topic} in a vivid paragraph.", "Rewrite the paragraph without adjectives."),
        ("Write a product description for something related to {topic}.", "Give it a catchy title."),
        ("Compose a speech about {topic} for a school audience.", "Shorten the speech to four sentences."),
    ),
    "roleplay": (
        ("Pretend you are a teacher explaining {topic} to a ten-year-old.", "Now explain it to an expert."),
        ("You are a travel guide. Tell me about {topic}.", "What should I bring with me?"),
        ("Act as an interviewer and ask me {number} questions about {topic}.", "Answer the first question yourself."),
        ("Imagine you are a scientist who studies {topic}. Introduce yourself.", "What is your greatest wish?"),
        ("Speak as a grumpy old sailor and give your opinion on {topic}.", "Now be cheerful instead."),
    ),
    "reasoning": (
        ("Compare {topic} and {other}. Which is more important, and why?", "Argue for the opposite side."),
        (
            "If a train travels {big} km in {number} hours, how fast is it? Explain each step.",
            "And for double the time?",
        ),
        ("What would happen if {topic} did not exist?", "Who would be affected most?"),
        ("List the pros and cons of {topic}.", "Which single point weighs the most?"),
        ("Anna is older than Ben, and Ben is older than Carl. Who is the youngest? Explain.", "Who is in the middle?"),
    ),
    "math": (
        ("What is {big} multiplied by {number}? Show your work.", "Add {big} to the result."),
        ("A shop sells {number} pens for {big} cents. How much does one pen cost?", "How much do twenty pens cost?"),
        ("Solve for x: {number}x + {number} = {big}.", "Check your solution."),
        ("What is the area of a rectangle with sides {number} and {big}?", "What is its perimeter?"),
        ("Explain what a prime number is and say whether {big} is prime.", "List the next three primes."),
    ),
    "coding": (
        ("Write a Python program that prints the first {big} square numbers.", "Use a list comprehension."),
        ("Write a Python class that models {topic}.", "Add a method that prints a summary."),
        ("Explain how a hash table works, with an example in Python.", "What is its time complexity?"),
        ("Write an SQL query that lists the {number} largest orders of each customer.", "Explain the query."),
        ("Write a JavaScript function that removes duplicates from an array.", "Now do it without a Set."),
        ("What is the difference between a list and a tuple in Python?", "Give an example of each."),
        (
            "Write a Python script that reads a CSV file and prints the average of column {number}.",
            "Handle missing values.",
        ),
    ),
    "extraction": (
        ("Extract all names and dates from this text as a list:\n{material}", "Return the result as JSON."),
        ("Summarize the following text in one sentence:\n{material}", "Summarize it in five words."),
        ("Classify the sentiment of this text as positive, negative or neutral:\n{material}", "Explain your choice."),
        ("List the main points of this text:\n{material}", "Which point matters most?"),
        ("Rewrite this text in simple English:\n{material}", "Translate it into French."),
    ),
    "stem": (
        ("Explain {topic} in simple terms.", "Give an example from everyday life."),
        ("What are the main causes and effects of {topic}?", "Which cause is the strongest?"),
        ("Describe an experiment that teaches something about {topic}.", "What can go wrong?"),
        ("What is the relationship between {topic} and {other}?", "Summarize this in one sentence."),
        ("Give {number} interesting facts about {topic}.", "Which one is the most surprising?"),
    ),
    "humanities": (
        ("Discuss the historical importance of {topic}.", "Name a book on this subject."),
        ("How has {topic} influenced modern society?", "Give two concrete examples."),
        ("What would a philosopher say about {topic}?", "What would a critic reply?"),
        ("Give me a {number}-step guide to learning about {topic}.", "Expand the first step."),
        ("What are some common misconceptions about {topic}?", "Why do people believe them?"),
    ),
}

# First words of a user's turn that a model continues by itself: mostly writing and roles, which templates cover least.
OPENINGS = (
    "",
    "Write a short story about",
    "Write a story in which",
    "Write a poem",
    "Write a letter",
    "Write an email to",
    "Write a blog post",
    "Write an article about",
    "Write a persuasive essay",
    "Write a review of",
    "Write a dialogue between",
    "Write a speech",
    "Write a paragraph describing",
    "Write a song about",
    "Write the opening",
    "Compose a",
    "Craft a",
    "Draft a professional",
    "Create a character",
    "Create a captivating",
    "Describe a",
    "Describe the",
    "Help me write",
    "Rewrite the following",
    "Edit the following paragraph",
    "Summarize the following",
    "Outline a",
    "Give me an idea for",
    "I'm writing a",
    "I need help with",
    "Can you help me",
    "Imagine you are",
    "Imagine that you are",
    "Pretend to be",
    "Pretend you are a",
    "You are a",
    "You are an expert",
    "Act as a",
    "Act as if you were",
    "Assume the role of",
    "Take on the role of",
    "I want you to act as",
    "Play the part of",
    "Speak like",
    "As a",
    "Suppose you are",
    "If you were",
    "Explain",
    "How do I",
    "What is the difference between",
    "Why do",
    "Compare",
    "What are some",
    "Tell me about",
    "Design a",
    "Propose a",
)

MATERIALS = (
    "Maria Lopez joined the company in May 2012 and became head of research in 2019. She moved to Lisbon last year.",
    "The museum opened in 1904. It was rebuilt after the fire of 1951, and Dr. Hans Meier has directed it since 2008.",
    "I waited forty minutes for my food, and when it came it was cold. The waiter was friendly, but I will not return.",
    "The new phone has a bright screen and a battery that lasts two days. The camera is average for its price.",
    "Rainfall in the valley fell by a third between 1990 and 2020, and farmers have switched from rice to millet.",
    "The concert was sold out. People danced in the aisles, and the band played until midnight without a break.",
    "The city council voted 7 to 4 to close the old bridge. Repairs will start in March and cost 3.2 million dollars.",
    "Honey bees visit about two million flowers to make one pound of honey, and they fly 55,000 miles for it.",
    "The package arrived two days late and the box was damaged, yet everything inside was in perfect condition.",
    "Amira has three meetings on Monday, a dentist appointment on Tuesday at 9 am, and a flight to Oslo on Friday.",
)

Exercise = Callable[[random.Random, int], tuple[str, str, str, list[tuple[str, str]]]]


def _numbers(chooser: random.Random) -> list[int]:
    return [chooser.randint(-9, 30) for _ in range(chooser.randint(3, 7))]


def _words(chooser: random.Random) -> list[str]:
    pool = (
        "apple",
        "river",
        "Stone",
        "cloud",
        "Table",
        "window",
        "green",
        "paper",
        "Light",
        "garden",
        "silver",
        "music",
    )
    return chooser.sample(pool, chooser.randint(3, 5))


def _reduce_numbers(chooser: random.Random, number: int) -> tuple[str, str, str, list[tuple[str, str]]]:
    conditions: dict[str, Callable[[int], bool]] = {
        f"greater than {number}": lambda value: value > number,
        f"divisible by {number}": lambda value: value % number == 0,
        "negative": lambda value: value < 0,
        "positive": lambda value: value > 0,
        f"not equal to {number}": lambda value: value != number,
        f"smaller than {number}": lambda value: value < number,
    }
    reductions: dict[str, Callable[[list[int]], object]] = {
        "sum": sum,
        "number": len,
        "list": list,
        "sorted list": sorted,
        "set": lambda values: set(values),
    }
    condition, reduction = chooser.choice(list(conditions)), chooser.choice(list(reductions))
    examples = []
    for _ in range(chooser.randint(1, 3)):
        values = _numbers(chooser)
        examples.append((str(values), str(reductions[reduction](filter_list(values, conditions[condition])))))
    name = f"{reduction.replace(' ', '_')}_of_{condition.replace(' ', '_')}"
    kind = {"sum": "int", "number": "int", "set": "set"}.get(reduction, "list")
    return name, f"numbers: list) -> {kind}", f"Return the {reduction} of all numbers that are {condition}.", examples


def filter_list(values: list[int], condition: Callable[[int], bool]) -> list[int]:
    """The values that meet a condition, in order."""
    return [value for value in values if condition(value)]


def _map_numbers(chooser: random.Random, number: int) -> tuple[str, str, str, list[tuple[str, str]]]:
    mappings: dict[str, tuple[str, Callable[[int], int]]] = {
        "multiply": (f"multiplied by {number}", lambda value: value * number),
        "increase": (f"increased by {number}", lambda value: value + number),
        "square": ("squared", lambda value: value * value),
        "remainder": (f"replaced by its remainder modulo {number}", lambda value: value % number),
        "negate": ("with its sign changed", lambda value: -value),
    }
    verb = chooser.choice(list(mappings))
    phrase, mapping = mappings[verb]
    values = _numbers(chooser)
    examples = [(str(values), str([mapping(value) for value in values]))]
    sentence = f"Take a list of integers and return a new list with each element {phrase}."
    return f"{verb}_all", "values: List[int]) -> List[int]", sentence, examples


def _map_words(chooser: random.Random, number: int) -> tuple[str, str, str, list[tuple[str, str]]]:
    mappings: dict[str, tuple[str, Callable[[list[str]], object]]] = {
        "longest": ("the longest word of a list", lambda words: max(words, key=len)),
        "lengths": ("the length of every word in a list", lambda words: [len(word) for word in words]),
        "upper": ("the words of a list in upper case", lambda words: [word.upper() for word in words]),
        "initials": (
            "a string made of the first letters of the words",
            lambda words: "".join(word[0] for word in words),
        ),
        "long_words": (
            f"the words that have more than {number} letters",
            lambda words: [w for w in words if len(w) > number],
        ),
        "capitalized": (
            "the words that start with a capital letter",
            lambda words: [w for w in words if w[0].isupper()],
        ),
        "index": ("a dictionary from each word to its length", lambda words: {word: len(word) for word in words}),
        "backwards": ("a list with each word spelled backwards", lambda words: [word[::-1] for word in words]),
    }
    verb = chooser.choice(list(mappings))
    phrase, mapping = mappings[verb]
    examples = []
    for _ in range(chooser.randint(1, 2)):
        words = _words(chooser)
        examples.append((str(words), repr(mapping(words))))
    return verb if "_" in verb else f"get_{verb}", "words: List[str])", f"Return {phrase}.", examples


def _text(chooser: random.Random, number: int) -> tuple[str, str, str, list[tuple[str, str]]]:
    mappings: dict[str, tuple[str, Callable[[str], object]]] = {
        "count_words": ("Count the words of a text.", lambda text: len(text.split())),
        "count_letter": ("Count how often the letter 'e' occurs in a text.", lambda text: text.count("e")),
        "title_case": ("Make the first letter of each word a capital.", lambda text: text.title()),
        "hyphenate": ("Replace the spaces of a text by hyphens.", lambda text: text.replace(" ", "-")),
        "first_letters": (f"Return the first {number} characters of a text.", lambda text: text[:number]),
        "repeat": (f"Repeat a text {number} times.", lambda text: text * number),
        "reverse_words": ("Return the words of a text in reverse order.", lambda text: " ".join(text.split()[::-1])),
        "is_short": (
            f"Say whether a text has fewer than {number * 3} characters.",
            lambda text: len(text) < number * 3,
        ),
    }
    name = chooser.choice(list(mappings))
    sentence, mapping = mappings[name]
    text = " ".join(_words(chooser))
    return name, "text: str)", sentence, [(repr(text), repr(mapping(text)))]


EXERCISES: tuple[Exercise, ...] = (_reduce_numbers, _map_numbers, _map_words, _text)
